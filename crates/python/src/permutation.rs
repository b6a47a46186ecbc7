//! Orders of samples, any place of which is computed by itself ([`packfs::order`]), for Python.

use std::ops::Range;

use packfs::order;
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;

fn fitting(length: u64) -> PyResult<u64> {
    if length <= order::Permutation::LENGTH_MAX {
        return Ok(length);
    }
    Err(PyValueError::new_err(format!(
        "a length of {length} is too much; the most is 2**62"
    )))
}

fn no_place(place: u64, length: u64) -> PyErr {
    PyIndexError::new_err(format!("there is no place {place} among {length}"))
}

/// The numbers of places start, start + step and so on, below stop.
fn part(
    py: Python<'_>,
    places: Range<u64>,
    step: usize,
    length: u64,
    get: impl Fn(u64) -> Option<u64> + Send,
) -> PyResult<Vec<u64>> {
    if step == 0 || places.end > length {
        let stop = places.end;
        let why =
            format!("places up to {stop} by {step} are not among {length}; use a stop of {length} at most");
        return Err(PyIndexError::new_err(why));
    }
    Ok(py.detach(|| places.step_by(step).filter_map(get).collect()))
}

/// The numbers 0 to length - 1 in an order chosen by a seed and an epoch.
#[pyclass(frozen, module = "redhare")]
pub(crate) struct Permutation(order::Permutation);

#[pymethods]
impl Permutation {
    #[new]
    #[pyo3(signature = (length, seed=0, epoch=0))]
    fn new(length: u64, seed: u64, epoch: u64) -> PyResult<Self> {
        Ok(Self(order::Permutation::new(fitting(length)?, seed, epoch)))
    }

    fn __len__(&self) -> usize {
        self.0.length() as usize
    }

    fn __getitem__(&self, place: u64) -> PyResult<u64> {
        let found = self.0.get(place);
        found.ok_or_else(|| no_place(place, self.0.length()))
    }

    /// The numbers at places start, start + step and so on, below stop.
    #[pyo3(signature = (start, stop, step=1))]
    fn part(&self, py: Python<'_>, start: u64, stop: u64, step: usize) -> PyResult<Vec<u64>> {
        part(py, start..stop, step, self.0.length(), |place| self.0.get(place))
    }
}

/// The samples of places start to stop - 1 of an epoch: blocks in random order, given in random order within each window.
#[pyclass(frozen, module = "redhare")]
pub(crate) struct Windows(order::Windows);

#[pymethods]
impl Windows {
    #[new]
    #[pyo3(signature = (length, start, stop, block, window, seed=0, epoch=0))]
    fn new(
        length: u64,
        start: u64,
        stop: u64,
        block: u64,
        window: u64,
        seed: u64,
        epoch: u64,
    ) -> PyResult<Self> {
        if block == 0 || window == 0 || start > stop {
            return Err(PyValueError::new_err(format!(
                "places {start} to {stop} in windows of {window} with blocks of {block} are none; give 1 sample or more"
            )));
        }
        let length = fitting(length)?;
        fitting(stop)?;
        Ok(Self(order::Windows::new(
            length,
            start..stop,
            block,
            window,
            seed,
            epoch,
        )))
    }

    fn __len__(&self) -> usize {
        self.0.length() as usize
    }

    fn __getitem__(&self, place: u64) -> PyResult<u64> {
        let found = self.0.get(place);
        found.ok_or_else(|| no_place(place, self.0.length()))
    }

    /// The samples at places start, start + step and so on, below stop.
    #[pyo3(signature = (start, stop, step=1))]
    fn part(&self, py: Python<'_>, start: u64, stop: u64, step: usize) -> PyResult<Vec<u64>> {
        part(py, start..stop, step, self.0.length(), |place| self.0.get(place))
    }

    /// How many windows there are.
    fn count(&self) -> u64 {
        self.0.count()
    }

    /// A window's samples as they are read, and in which order they are given, as positions among them.
    fn window(&self, py: Python<'_>, number: u64) -> PyResult<(Vec<u64>, Vec<usize>)> {
        if number >= self.0.count() {
            return Err(no_place(number, self.0.count()));
        }
        Ok(py.detach(|| {
            let (places, mixed) = (self.0.places(number), self.0.mixed(number));
            let given = (0..mixed.length()).filter_map(|place| mixed.get(place));
            let given = given.map(|place| place as usize).collect();
            (places.filter_map(|place| self.0.read_at(place)).collect(), given)
        }))
    }
}
