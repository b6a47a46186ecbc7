//! How many calls a master has answered, of which method and how.

use std::sync::atomic::{AtomicU64, Ordering};

use tonic::codegen::http::HeaderMap;
use tonic::{Code, Status};

/// gRPC's codes are 0 to 16.
const CODES: usize = 17;

/// A counter for each method and code. They count whether or not anybody looks.
#[derive(Debug)]
pub(crate) struct Calls(Vec<(&'static str, [AtomicU64; CODES])>);

impl Calls {
    /// For these paths. A caller can name any other one: those are not counted, so that nobody can make series.
    pub(crate) fn of(paths: impl Iterator<Item = &'static str>) -> Self {
        Self(paths.map(|path| (path, Default::default())).collect())
    }

    /// A refusal stands in the headers; what succeeds ends with its trailers. A stream counts when it begins.
    pub(crate) fn count(&self, path: &str, headers: &HeaderMap) {
        let code = Status::from_header_map(headers).map_or(Code::Ok, |status| status.code());
        self.count_code(path, code);
    }

    /// An answer that has no headers of its own, as a message of a stream.
    pub(crate) fn count_code(&self, path: &str, code: Code) {
        let method = self.0.iter().find(|(method, _)| *method == path);
        if let Some(counter) = method.and_then(|(_, counters)| counters.get(code as usize)) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Method, code and number of what there has been, both named as in the audit log.
    pub(crate) fn answered(&self) -> Vec<(&'static str, String, u64)> {
        let mut answered = Vec::new();
        for (path, counters) in &self.0 {
            let method = path.trim_start_matches("/redhare.v1.");
            for (code, counter) in (0..).zip(counters) {
                let count = counter.load(Ordering::Relaxed);
                if count > 0 {
                    answered.push((method, format!("{:?}", Code::from_i32(code)), count));
                }
            }
        }
        answered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_count_by_method_and_code_and_only_of_methods_there_are() {
        let calls = Calls::of(["/redhare.v1.Volumes/List", "/redhare.v1.Volumes/Show"].into_iter());
        let refusal = |code| {
            Status::new(code, "why")
                .into_http::<tonic::body::Body>()
                .headers()
                .clone()
        };
        for _ in 0..2 {
            calls.count("/redhare.v1.Volumes/Show", &HeaderMap::new());
        }
        calls.count("/redhare.v1.Volumes/Show", &refusal(Code::NotFound));
        calls.count("/redhare.v1.Volumes/List", &refusal(Code::Unauthenticated));
        calls.count("/redhare.v1.Volumes/Invented", &refusal(Code::Unimplemented));
        assert_eq!(
            calls.answered(),
            [
                ("Volumes/List", "Unauthenticated".to_owned(), 1),
                ("Volumes/Show", "Ok".to_owned(), 2),
                ("Volumes/Show", "NotFound".to_owned(), 1),
            ]
        );
    }
}
