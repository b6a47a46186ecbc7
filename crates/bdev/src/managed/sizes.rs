//! Devices that get another size while they are used: `bdev_null_resize`, `bdev_aio_rescan` and `bdev_uring_rescan`.

use std::sync::Arc;

use foundation::BlockCount;
use rpc::{Method, Registry, RpcError};
use serde::Deserialize;

use super::parameters::check_size;
use super::sources::{AIO, NULL, URING};
use super::{Devices, Managed, open_failed};
use crate::BlockDevice;
use crate::file::FileDevice;
use crate::null::NullDevice;

/// Unit of the new size of a null device, in bytes.
const MEBIBYTE: u64 = 1 << 20;

/// What can get another size.
pub(super) enum Sizable {
    /// To any.
    Null(Arc<NullDevice>),
    /// To that of the file.
    File(Arc<FileDevice>),
}

impl Managed {
    pub(super) fn set_sizable(&self, sizable: Sizable) {
        *self.sizable.borrow_mut() = Some(sizable);
    }

    /// It was made where nothing was kept to resize it by.
    fn is_fixed(&self, method: &str) -> RpcError {
        let remedy = format!(
            "device {} keeps its size; make it by its kind's method instead",
            self.name
        );
        RpcError::unsupported(method, "name", &remedy)
    }

    /// A device in use only grows: what is beyond its new end may be somebody's data.
    fn check_growth(&self, method: &str, blocks: BlockCount) -> Result<(), RpcError> {
        let now = self.device.geometry().blocks;
        match self.claimed_by() {
            Some(user) if blocks < now => Err(RpcError::errno(
                libc::EBUSY,
                format!(
                    "{method}: device {} has {} blocks and would shrink to {} while {user} uses it; remove that first",
                    self.name, now.0, blocks.0
                ),
            )),
            _ => Ok(()),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Resize {
    name: String,
    /// In mebibytes.
    new_size: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    name: String,
}

pub(super) fn add(registry: &mut Registry, devices: &Devices) {
    let own = devices.clone();
    registry.add(Method::new(&["bdev_null_resize"], move |given: Resize| {
        std::future::ready(resize(&own, &given))
    }));
    let rescans: [(&'static [&'static str], &'static str); 2] =
        [(&["bdev_aio_rescan"], AIO), (&["bdev_uring_rescan"], URING)];
    for (names, product) in rescans {
        let own = devices.clone();
        registry.add(Method::new(names, move |given: Named| {
            std::future::ready(rescan(&own, names[0], product, &given))
        }));
    }
}

fn resize(devices: &Devices, given: &Resize) -> Result<bool, RpcError> {
    const METHOD: &str = "bdev_null_resize";
    let managed = devices.get(&given.name)?;
    managed.check_kind(NULL)?;
    let block_bytes = managed.device.geometry().block_bytes;
    let blocks = given.new_size.saturating_mul(MEBIBYTE) / u64::from(block_bytes);
    let blocks = check_size(METHOD, block_bytes, blocks)?;
    managed.check_growth(METHOD, blocks)?;
    let Some(Sizable::Null(device)) = &*managed.sizable.borrow() else {
        return Err(managed.is_fixed(METHOD));
    };
    device.resize(blocks);
    managed.tell_resized();
    Ok(true)
}

fn rescan(devices: &Devices, method: &str, product: &'static str, given: &Named) -> Result<bool, RpcError> {
    let managed = devices.get(&given.name)?;
    managed.check_kind(product)?;
    let before = managed.device.geometry().blocks;
    let Some(Sizable::File(device)) = &*managed.sizable.borrow() else {
        return Err(managed.is_fixed(method));
    };
    let blocks = device.size_now().map_err(|error| open_failed(&error))?;
    managed.check_growth(method, blocks)?;
    device.look_at_size().map_err(|error| open_failed(&error))?;
    if managed.device.geometry().blocks != before {
        managed.tell_resized();
    }
    Ok(true)
}
