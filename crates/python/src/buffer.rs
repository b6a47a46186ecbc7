//! Content as Python sees it: an object with the buffer protocol.

use std::ffi::{c_int, c_void};

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;

use crate::bytes::Bytes;

/// Owns the bytes that a memoryview shows.
#[pyclass(frozen, module = "redhare._native")]
pub(crate) struct Buffer {
    bytes: Bytes,
}

impl Buffer {
    /// A read-only memoryview of the bytes, which keeps them.
    pub(crate) fn view(py: Python<'_>, bytes: Bytes) -> PyResult<Bound<'_, PyAny>> {
        let buffer = Bound::new(py, Self { bytes })?;
        Ok(PyMemoryView::from(buffer.as_any())?.into_any())
    }
}

#[pymethods]
impl Buffer {
    fn __len__(&self) -> usize {
        self.bytes.len()
    }

    /// Fills a view of all bytes, which may not be written.
    ///
    /// # Safety
    /// `view` is null or points to a `Py_buffer` that may be written, as Python promises (C API, "Buffer Object Structures").
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("there is no view to fill"));
        }
        let (first, length) = slf.get().bytes.raw_parts();
        let first = first.cast_mut().cast::<c_void>();
        // SAFETY: the view is valid (above). The bytes stay where they are for as long as this object lives, which the
        // view keeps by a reference of its own, and Python writes nothing into them, since they are marked read-only.
        let filled =
            unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), first, length as ffi::Py_ssize_t, 1, flags) };
        match filled {
            0 => Ok(()),
            _ => Err(PyErr::fetch(slf.py())),
        }
    }
}
