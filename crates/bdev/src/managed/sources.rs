//! Devices that stand on nothing of ours: memory, null, and files.

use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use rpc::{Method, Registry, RpcError, SavedCall};
use serde::Deserialize;
use serde_json::{Value, json};

use super::parameters::{check_block_bytes, check_size, uuid_of};
use super::sizes::Sizable;
use super::{Description, Devices, Managed, open_failed};
use crate::file::{FileDevice, FileOptions};
use crate::memory::MemoryDevice;
use crate::null::NullDevice;

const MALLOC: &str = "Malloc disk";
pub(super) const NULL: &str = "Null disk";
pub(super) const AIO: &str = "AIO disk";
pub(super) const URING: &str = "URING bdev";

/// Block size of a file whose method names none.
const FILE_BLOCK_BYTES: u32 = 4096;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Malloc {
    name: Option<String>,
    uuid: Option<String>,
    num_blocks: u64,
    block_size: u32,
    physical_block_size: Option<u32>,
    optimal_io_boundary: Option<u32>,
    md_size: Option<u32>,
    md_interleave: Option<bool>,
    dif_type: Option<u32>,
    dif_is_head_of_md: Option<bool>,
    dif_pi_format: Option<u32>,
    numa_id: Option<i32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Null {
    name: String,
    uuid: Option<String>,
    num_blocks: u64,
    block_size: u32,
    physical_block_size: Option<u32>,
    md_size: Option<u32>,
    dif_type: Option<u32>,
    dif_is_head_of_md: Option<bool>,
    dif_pi_format: Option<u32>,
    preferred_write_alignment: Option<u32>,
    preferred_write_granularity: Option<u32>,
    optimal_write_size: Option<u32>,
    preferred_unmap_alignment: Option<u32>,
    preferred_unmap_granularity: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Aio {
    filename: String,
    name: String,
    uuid: Option<String>,
    block_size: Option<u32>,
    readonly: Option<bool>,
    fallocate: Option<bool>,
    nowait: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Uring {
    filename: String,
    name: String,
    uuid: Option<String>,
    block_size: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    name: String,
}

pub(super) fn add(registry: &mut Registry, devices: &Devices) {
    let own = devices.clone();
    registry.add(Method::new(&["bdev_malloc_create"], move |given: Malloc| {
        std::future::ready(malloc_create(&own, given))
    }));
    let own = devices.clone();
    registry.add(Method::new(&["bdev_null_create"], move |given: Null| {
        std::future::ready(null_create(&own, given))
    }));
    let own = devices.clone();
    registry.add(Method::new(&["bdev_aio_create"], move |given: Aio| {
        std::future::ready(aio_create(&own, given))
    }));
    let own = devices.clone();
    registry.add(Method::new(&["bdev_uring_create"], move |given: Uring| {
        std::future::ready(uring_create(&own, given))
    }));
    let deletions: [(&'static [&'static str], &'static str); 4] = [
        (&["bdev_malloc_delete"], MALLOC),
        (&["bdev_null_delete"], NULL),
        (&["bdev_aio_delete"], AIO),
        (&["bdev_uring_delete"], URING),
    ];
    for (names, product) in deletions {
        add_deletion(registry, devices, names, product);
    }
}

/// A method that removes a device of one kind by its name.
pub(super) fn add_deletion(
    registry: &mut Registry,
    devices: &Devices,
    names: &'static [&'static str],
    product: &'static str,
) {
    let own = devices.clone();
    registry.add(Method::new(names, move |given: Named| {
        std::future::ready(own.remove(&given.name, product).map(|()| true))
    }));
}

fn malloc_create(devices: &Devices, given: Malloc) -> Result<String, RpcError> {
    const METHOD: &str = "bdev_malloc_create";
    let blocks = check_size(METHOD, given.block_size, given.num_blocks)?;
    RpcError::unless_usual(
        METHOD,
        "physical_block_size",
        given.physical_block_size,
        given.block_size,
    )?;
    RpcError::unless_usual(METHOD, "optimal_io_boundary", given.optimal_io_boundary, 0)?;
    RpcError::unless_usual(METHOD, "md_size", given.md_size, 0)?;
    RpcError::unless_usual(METHOD, "md_interleave", given.md_interleave, false)?;
    RpcError::unless_usual(METHOD, "dif_type", given.dif_type, 0)?;
    RpcError::unless_usual(METHOD, "dif_is_head_of_md", given.dif_is_head_of_md, false)?;
    RpcError::unless_usual(METHOD, "dif_pi_format", given.dif_pi_format, 0)?;
    RpcError::unless_usual(METHOD, "numa_id", given.numa_id, -1)?;
    let uuid = uuid_of(given.uuid.as_deref())?;
    let name = given.name.unwrap_or_else(|| devices.free_name("Malloc"));
    let device = MemoryDevice::new(given.block_size, blocks).map_err(|error| open_failed(&error))?;
    let managed = register_sized(devices, METHOD, MALLOC, name, uuid, Arc::new(device))?;
    Ok(managed.name().to_owned())
}

fn null_create(devices: &Devices, given: Null) -> Result<String, RpcError> {
    const METHOD: &str = "bdev_null_create";
    let blocks = check_size(METHOD, given.block_size, given.num_blocks)?;
    RpcError::unless_usual(
        METHOD,
        "physical_block_size",
        given.physical_block_size,
        given.block_size,
    )?;
    RpcError::unless_usual(METHOD, "md_size", given.md_size, 0)?;
    RpcError::unless_usual(METHOD, "dif_type", given.dif_type, 0)?;
    RpcError::unless_usual(METHOD, "dif_is_head_of_md", given.dif_is_head_of_md, false)?;
    RpcError::unless_usual(METHOD, "dif_pi_format", given.dif_pi_format, 0)?;
    for (parameter, value) in [
        ("preferred_write_alignment", given.preferred_write_alignment),
        ("preferred_write_granularity", given.preferred_write_granularity),
        ("optimal_write_size", given.optimal_write_size),
        ("preferred_unmap_alignment", given.preferred_unmap_alignment),
        ("preferred_unmap_granularity", given.preferred_unmap_granularity),
    ] {
        RpcError::unless_usual(METHOD, parameter, value, 0)?;
    }
    let uuid = uuid_of(given.uuid.as_deref())?;
    let device = Arc::new(NullDevice::new(given.block_size, blocks));
    let managed = register_sized(devices, METHOD, NULL, given.name, uuid, device.clone())?;
    managed.set_sizable(Sizable::Null(device));
    Ok(managed.name().to_owned())
}

/// Registers a device that its size and name make again.
fn register_sized(
    devices: &Devices,
    method: &'static str,
    product: &'static str,
    name: String,
    uuid: Option<[u8; 16]>,
    device: Arc<dyn crate::BlockDevice>,
) -> Result<Rc<Managed>, RpcError> {
    let (saved_name, shape) = (name.clone(), device.clone());
    devices.register(Description {
        name,
        uuid,
        product,
        device,
        details: Box::new(|| json!({})),
        saved: Box::new(move |uuid| {
            let geometry = shape.geometry();
            Some(SavedCall {
                method,
                params: json!({
                    "name": saved_name,
                    "num_blocks": geometry.blocks.0,
                    "block_size": geometry.block_bytes,
                    "uuid": uuid,
                }),
            })
        }),
        base: None,
    })
}

fn aio_create(devices: &Devices, given: Aio) -> Result<String, RpcError> {
    const METHOD: &str = "bdev_aio_create";
    RpcError::unless_usual(METHOD, "readonly", given.readonly, false)?;
    RpcError::unless_usual(METHOD, "nowait", given.nowait, false)?;
    // Holes are punched wherever the file system can, asked for or not.
    let fallocate = given.fallocate.unwrap_or(false);
    let file = FileKind {
        method: METHOD,
        product: AIO,
        filename: given.filename.clone(),
        name: given.name.clone(),
        uuid: given.uuid,
        block_bytes: given.block_size.unwrap_or(FILE_BLOCK_BYTES),
    };
    let (name, filename) = (given.name, given.filename);
    file.register(
        devices,
        move |block_bytes| {
            json!({ "aio": {
                "filename": filename,
                "block_size_override": given.block_size.is_some_and(|asked| asked == block_bytes),
                "readonly": false,
                "fallocate": true,
            }})
        },
        move |params| {
            params["name"] = json!(name);
            params["readonly"] = json!(false);
            params["fallocate"] = json!(fallocate);
        },
    )
}

fn uring_create(devices: &Devices, given: Uring) -> Result<String, RpcError> {
    let file = FileKind {
        method: "bdev_uring_create",
        product: URING,
        filename: given.filename.clone(),
        name: given.name.clone(),
        uuid: given.uuid,
        block_bytes: given.block_size.unwrap_or(FILE_BLOCK_BYTES),
    };
    let (name, filename) = (given.name, given.filename);
    file.register(
        devices,
        move |_| json!({ "uring": { "filename": filename } }),
        move |params| params["name"] = json!(name),
    )
}

/// What the two kinds of file have in common. Both are served by our ring.
struct FileKind {
    method: &'static str,
    product: &'static str,
    filename: String,
    name: String,
    uuid: Option<String>,
    block_bytes: u32,
}

impl FileKind {
    fn register(
        self,
        devices: &Devices,
        details: impl Fn(u32) -> Value + 'static,
        complete: impl Fn(&mut Value) + 'static,
    ) -> Result<String, RpcError> {
        let (method, block_bytes, filename) = (self.method, self.block_bytes, self.filename);
        check_block_bytes(method, block_bytes)?;
        let uuid = uuid_of(self.uuid.as_deref())?;
        let options = FileOptions {
            create: None,
            block_bytes,
            direct: true,
            read_only: false,
        };
        let device = FileDevice::open(Path::new(&filename), options).map_err(|error| open_failed(&error))?;
        let device = Arc::new(device);
        let managed = devices.register(Description {
            name: self.name,
            uuid,
            product: self.product,
            device: device.clone(),
            details: Box::new(move || details(block_bytes)),
            saved: Box::new(move |uuid| {
                let mut params = json!({ "filename": filename, "block_size": block_bytes, "uuid": uuid });
                complete(&mut params);
                Some(SavedCall { method, params })
            }),
            base: None,
        })?;
        managed.set_sizable(Sizable::File(device));
        Ok(managed.name().to_owned())
    }
}
