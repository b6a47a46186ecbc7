//! `redhare volume reservations`.

use clap::Args;
use master::{Client, v1};
use protocols::nvme::reservation::ReservationType;

use crate::commands::cluster::ClusterArguments;
use crate::output::{Failure, Output, table};

pub(super) const EXAMPLES: &str = "Examples:\n  redhare volume reservations data\n  redhare volume reservations data --clear\n\nHosts register keys and reserve a volume \
    among themselves (nvme resv-register, resv-acquire, resv-release, resv-report), by whichever portal; the nodes refuse what goes against it. --clear voids all \
    of it, should hosts be gone that hold it, and lets hosts write again to a volume that a native writer had.";

#[derive(Args)]
pub(super) struct ReservationsArguments {
    /// The volume's name
    name: String,
    /// Void all registrations and the reservation: every host that may connect may write
    #[arg(long)]
    clear: bool,
}

#[derive(serde::Serialize)]
struct RegistrantView {
    host: String,
    key: String,
    holds: bool,
}

#[derive(serde::Serialize)]
struct ReservationsView {
    volume: String,
    /// As the NVMe specification names it; null if none is held.
    r#type: Option<String>,
    generation: u32,
    in_force: bool,
    native_writer: bool,
    registrants: Vec<RegistrantView>,
}

fn view(volume: &str, found: &v1::HostReservations) -> ReservationsView {
    let kind = u8::try_from(found.r#type)
        .ok()
        .and_then(ReservationType::from_code);
    let hex = |host: &[u8]| host.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let registrant = |registrant: &v1::Registrant| RegistrantView {
        host: hex(&registrant.host),
        key: format!("{:#x}", registrant.key),
        holds: kind.is_some_and(|kind| kind.is_held_by_all() || registrant.host == found.holder),
    };
    ReservationsView {
        volume: volume.to_owned(),
        r#type: kind.map(|kind| kind.to_string()),
        generation: found.generation,
        in_force: found.in_force,
        native_writer: found.taken,
        registrants: found.registrants.iter().map(registrant).collect(),
    }
}

fn describe(view: &ReservationsView) -> String {
    let mut lines = vec![match &view.r#type {
        Some(kind) => format!("volume {}: {kind}, generation {}", view.volume, view.generation),
        None => format!("volume {}: no reservation is held", view.volume),
    }];
    if view.native_writer {
        lines.push(
            "a native writer has had it since: hosts may only read (--clear gives it to them)".to_owned(),
        );
    }
    if !view.in_force {
        lines.push("not in force on every copy yet: the command that made it is under way, or has failed and is to be made again".to_owned());
    }
    if !view.registrants.is_empty() {
        let row = |registrant: &RegistrantView| {
            let holds = if registrant.holds { "yes" } else { "no" };
            vec![registrant.host.clone(), registrant.key.clone(), holds.to_owned()]
        };
        let mut rows = vec![["HOST", "KEY", "HOLDS"].map(str::to_owned).to_vec()];
        rows.extend(view.registrants.iter().map(row));
        lines.push(table(&rows));
    }
    lines.join("\n")
}

pub(super) fn run(
    cluster: &ClusterArguments,
    arguments: ReservationsArguments,
    output: &Output,
) -> Result<(), Failure> {
    let ReservationsArguments { name, clear } = arguments;
    if clear {
        let request = v1::ClearReservationsRequest { volume: name.clone() };
        let answer =
            cluster.call(|client: Client| async move { client.clear_reservations(request).await })?;
        let view = view(&name, &answer.reservations.unwrap_or_default());
        output.print(&view, || {
            format!("all reservations of volume {name} are void: every host that may connect may write it")
        });
        return Ok(());
    }
    let request = v1::ShowVolumeRequest { name: name.clone() };
    let shown = cluster.call(|client: Client| async move { client.show_volume(request).await })?;
    let volume = shown.volume.map_or(0, |volume| volume.number);
    let request = v1::ShowReservationsRequest { volume };
    let answer = cluster.call(|client: Client| async move { client.reservations(request).await })?;
    let view = view(&name, &answer.reservations.unwrap_or_default());
    output.print(&view, || describe(&view));
    Ok(())
}
