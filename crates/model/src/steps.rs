//! The steps of the model by subject, each with the rules that it keeps.

mod clients;
mod compares;
mod configuration;
mod crashes;
mod grants;
mod joins;
mod places;
mod portals;
mod reads;
mod sealing;
mod writes;
