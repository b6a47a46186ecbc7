//! `bdev_enable_histogram` and `bdev_get_histogram`.

use rpc::{Method, Registry, RpcError};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Devices;
use crate::histogram::{GRANULARITIES, Histogram, Looked, Plan, Shape};

/// Buckets of a range, as a binary logarithm, unless said: as SPDK has them.
const GRANULARITY: u32 = 7;
/// Our ticks are nanoseconds.
const TICKS_PER_SECOND: u64 = 1_000_000_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Enable {
    name: String,
    enable: bool,
    opc: Option<Kind>,
    granularity: Option<u32>,
    min_nsec: Option<u64>,
    max_nsec: Option<u64>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Read,
    Write,
    Unmap,
    Flush,
    WriteZeroes,
    Compare,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    name: String,
}

pub(super) fn add(registry: &mut Registry, devices: &Devices) {
    let own = devices.clone();
    registry.add(Method::new(&["bdev_enable_histogram"], move |given: Enable| {
        std::future::ready(enable(&own, &given))
    }));
    let own = devices.clone();
    registry.add(Method::new(&["bdev_get_histogram"], move |given: Named| {
        std::future::ready(get(&own, &given))
    }));
}

fn enable(devices: &Devices, given: &Enable) -> Result<bool, RpcError> {
    let managed = devices.get(&given.name)?;
    let granularity = given.granularity.unwrap_or(GRANULARITY);
    let (least, most) = (given.min_nsec.unwrap_or(0), given.max_nsec.unwrap_or(u64::MAX));
    let Some(shape) = Shape::new(granularity, least, most) else {
        return Err(RpcError::errno(
            libc::EINVAL,
            format!(
                "bdev_enable_histogram: granularity is {granularity}, min_nsec {least} and max_nsec {most}; use a \
                 granularity of {} to {} and a min_nsec of at most max_nsec",
                GRANULARITIES.start(),
                GRANULARITIES.end()
            ),
        ));
    };
    let looked = match given.opc {
        None => Looked::All,
        Some(Kind::Read) => Looked::Reads,
        Some(Kind::Write) => Looked::Writes,
        Some(Kind::Unmap) => Looked::Deallocations,
        Some(Kind::Flush) => Looked::Flushes,
        Some(Kind::WriteZeroes) => Looked::Zeroings,
        Some(Kind::Compare) => Looked::Comparisons,
    };
    managed
        .device
        .collect(given.enable.then_some(Plan { shape, looked }));
    Ok(true)
}

fn get(devices: &Devices, given: &Named) -> Result<Value, RpcError> {
    let managed = devices.get(&given.name)?;
    let Some(histogram) = managed.device.histogram() else {
        return Err(RpcError::errno(
            libc::EINVAL,
            format!(
                "no histogram of {} is collected; call bdev_enable_histogram with enable true first",
                managed.name()
            ),
        ));
    };
    Ok(shown(&histogram))
}

/// The buckets are 64-bit little-endian numbers, as SPDK's are on the machines that it runs on.
fn shown(histogram: &Histogram) -> Value {
    let bytes: Vec<u8> = histogram
        .counts
        .iter()
        .flat_map(|count| count.to_le_bytes())
        .collect();
    json!({
        "histogram": base64(&bytes),
        "granularity": histogram.shape.granularity(),
        "min_range": histogram.shape.min_range(),
        "max_range": histogram.shape.max_range(),
        "tsc_rate": TICKS_PER_SECOND,
    })
}

/// RFC 4648, section 4, with padding.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for piece in bytes.chunks(3) {
        let byte = |index: usize| u32::from(piece.get(index).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            if digit <= piece.len() {
                let index = bits >> (18 - 6 * digit) & 0x3f;
                text.push(char::from(DIGITS[index as usize]));
            } else {
                text.push('=');
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::base64;

    #[test]
    fn base64_is_that_of_the_rfc() {
        // RFC 4648, section 10.
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }
}
