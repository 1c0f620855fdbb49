//! What comes from Python: numbers, keys, policies.

use admittance_server::{Config, Defaults, Fail};
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString, PyTuple};

use crate::failure::ConfigFailure;

/// A whole number of units. One that no message can carry becomes the nearest that can, which is
/// then refused as out of range like any other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Units(pub(crate) i64);

impl Units {
    pub(crate) const ONE: Self = Self(1);
}

impl<'a, 'py> FromPyObject<'a, 'py> for Units {
    type Error = PyErr;

    #[inline]
    fn extract(given: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        match given.extract() {
            Ok(units) => Ok(Self(units)),
            Err(error) => saturated(&given, error),
        }
    }
}

#[cold]
fn saturated(given: &Bound<'_, PyAny>, error: PyErr) -> PyResult<Units> {
    if !error.is_instance_of::<PyOverflowError>(given.py()) {
        return Err(error);
    }
    Ok(Units(if given.lt(0)? { i64::MIN } else { i64::MAX }))
}

/// The keys of a batch, in a tuple: nobody changes it, and it keeps them, so that their texts are
/// read where they are, and without the interpreter's lock.
pub(crate) fn tuple<'py>(keys: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyTuple>> {
    // Text is a sequence of texts too; who gives one has made a mistake.
    if keys.is_instance_of::<PyString>() {
        return Err(PyTypeError::new_err("keys must be a list of str, not one str"));
    }
    match keys.cast::<PyList>() {
        Ok(list) => Ok(list.to_tuple()),
        Err(_) => PyTuple::new(keys.py(), keys.try_iter()?.collect::<PyResult<Vec<_>>>()?),
    }
}

/// The texts among them, still as Python has them.
pub(crate) fn strings<'a, 'py>(
    keys: &'a Bound<'py, PyTuple>,
) -> PyResult<Vec<Borrowed<'a, 'py, PyString>>> {
    let mut strings = Vec::with_capacity(keys.len());
    for key in keys.iter_borrowed() {
        strings.push(match key.cast_exact::<PyString>() {
            Ok(string) => string,
            Err(_) => key.cast::<PyString>()?,
        });
    }
    Ok(strings)
}

/// Their texts.
pub(crate) fn texts<'a>(strings: &'a [Borrowed<'_, '_, PyString>]) -> PyResult<Vec<&'a str>> {
    let mut texts = Vec::with_capacity(strings.len());
    for string in strings {
        texts.push(string.to_str()?);
    }
    Ok(texts)
}

/// The same as texts of their own.
pub(crate) fn owned(keys: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
    let keys = tuple(keys)?;
    Ok(texts(&strings(&keys)?)?.into_iter().map(str::to_owned).collect())
}

/// Policies out of a text, or of the file that has this name.
pub(crate) fn config(source: &str, text: Option<&str>, defaults: Defaults) -> PyResult<Config> {
    let read = match text {
        Some(text) => Config::parse(source, text, defaults),
        None => Config::load(source.as_ref(), defaults),
    };
    read.map_err(|report| ConfigFailure(report.to_string()).into())
}

pub(crate) fn fail(fail: &str) -> PyResult<Fail> {
    let known = [Fail::Open, Fail::Closed, Fail::Local];
    let found = known.into_iter().find(|known| known.name() == fail);
    let message = || format!("fail is {fail:?}; write \"open\", \"closed\" or \"local\"");
    found.ok_or_else(|| PyValueError::new_err(message()))
}
