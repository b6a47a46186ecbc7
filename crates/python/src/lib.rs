//! The compiled part of the Python package `redhare` (`python/redhare`): data sets read from Python, and volumes written.
//!
//! Each open data set has a thread of its own with a reactor ([`worker`]); calls go to it through a mailbox and wait with the
//! interpreter free for others ([`handle`]); it shows one generation until it is asked for the newest ([`current`]). Contents stay in the buffers they arrived in, which Python borrows ([`bytes`])
//! through the buffer protocol ([`buffer`]). A volume's writer has a thread of the same kind ([`writing`]). After a fork the child's use of a parent's handle is refused ([`fork`]), and the
//! Python side opens it again. What is friendly in Python is written in Python; this part has what needs the reactor.

mod buffer;
mod bytes;
mod current;
mod entry;
mod failure;
mod files;
mod fork;
mod handle;
mod opened;
mod permutation;
mod reading;
mod witness;
mod worker;
mod writing;

use pyo3::prelude::*;

/// To be called in the child of a fork (`os.register_at_fork`).
#[pyfunction]
fn forked() {
    fork::happened();
}

#[pymodule]
#[pyo3(name = "_native")]
fn native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<buffer::Buffer>()?;
    module.add_class::<entry::Entry>()?;
    module.add_class::<handle::Handle>()?;
    module.add_class::<handle::Index>()?;
    module.add_class::<handle::Pending>()?;
    module.add_class::<permutation::Permutation>()?;
    module.add_class::<permutation::Windows>()?;
    module.add_class::<writing::WriterHandle>()?;
    module.add_function(wrap_pyfunction!(handle::open_volume, module)?)?;
    module.add_function(wrap_pyfunction!(handle::open_file, module)?)?;
    module.add_function(wrap_pyfunction!(writing::write_volume, module)?)?;
    module.add_function(wrap_pyfunction!(writing::write_file, module)?)?;
    module.add_function(wrap_pyfunction!(forked, module)?)?;
    Ok(())
}
