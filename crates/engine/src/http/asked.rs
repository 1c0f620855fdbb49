//! What a request asks for: whose it is, and what it will take.

use std::net::IpAddr;

use admittance_core::load::Class;
use http::{Extensions, HeaderName, Request};

use super::{ClientAddress, ClientKey};
use crate::admission;

/// What a request asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    /// Nobody's, if it is not to be asked.
    key: Option<Box<[u8]>>,
    cost: u64,
    value: Option<f64>,
    hold_ms: Option<f64>,
    class: Class,
}

impl Asked {
    /// Goes by the limits and accounts of this key, at a cost of 1.
    #[must_use]
    pub fn key(key: impl AsRef<[u8]>) -> Self {
        Self { key: Some(key.as_ref().into()), ..Self::exempt() }
    }

    /// Admitted without asking: health checks.
    #[must_use]
    pub const fn exempt() -> Self {
        Self { key: None, cost: 1, value: None, hold_ms: None, class: Class::Default }
    }

    /// It is expected to cost so much.
    #[must_use]
    pub fn cost(self, cost: u64) -> Self {
        Self { cost, ..self }
    }

    /// It is worth so much.
    #[must_use]
    pub fn value(self, value: f64) -> Self {
        Self { value: Some(value), ..self }
    }

    /// It will hold its permit for so many milliseconds.
    #[must_use]
    pub fn hold_ms(self, hold_ms: f64) -> Self {
        Self { hold_ms: Some(hold_ms), ..self }
    }

    /// It matters so much when the process is behind.
    #[must_use]
    pub fn class(self, class: Class) -> Self {
        Self { class, ..self }
    }

    /// As an admitter is asked, unless it is exempt.
    pub(super) fn request(&self) -> Option<admission::Request<'_>> {
        let Self { key, cost, value, hold_ms, class } = self;
        let asked = admission::Request::new(key.as_deref()?).cost(*cost).class(*class);
        Some(admission::Request { value: *value, hold_ms: *hold_ms, ..asked })
    }
}

/// Says what a request asks for: a closure, [`ByClient`], [`ByHeader`], or a closure around one of
/// them that says the cost too.
pub trait AskFor<Q> {
    /// What it asks for.
    fn ask(&self, request: &Q) -> Asked;
}

impl<Q, F: Fn(&Q) -> Asked> AskFor<Q> for F {
    fn ask(&self, request: &Q) -> Asked {
        self(request)
    }
}

/// Each client by its address.
#[derive(Clone, Debug)]
pub struct ByClient<P> {
    clients: ClientAddress,
    peer: P,
}

impl<P: Fn(&Extensions) -> Option<IpAddr>> ByClient<P> {
    /// Finds clients like this; `peer` finds the address of the connection, which the server puts
    /// into the request's extensions: axum as `ConnectInfo`, tonic as `TcpConnectInfo`. Requests
    /// without one share a key.
    pub const fn new(clients: ClientAddress, peer: P) -> Self {
        Self { clients, peer }
    }

    /// Who is calling.
    #[must_use]
    pub fn key<T>(&self, request: &Request<T>) -> ClientKey {
        self.clients.key((self.peer)(request.extensions()), request.headers())
    }
}

impl<T, P: Fn(&Extensions) -> Option<IpAddr>> AskFor<Request<T>> for ByClient<P> {
    fn ask(&self, request: &Request<T>) -> Asked {
        Asked::key(self.key(request).as_bytes())
    }
}

/// Each value of a header by itself. Requests without the header, with several of it, or with one
/// longer than [`KEY_MAX`] share a key, the empty one: somebody who could choose between two values
/// would have two limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ByHeader(pub HeaderName);

impl<T> AskFor<Request<T>> for ByHeader {
    fn ask(&self, request: &Request<T>) -> Asked {
        let mut values = request.headers().get_all(&self.0).iter();
        Asked::key(match (values.next(), values.next()) {
            (Some(value), None) if value.len() <= KEY_MAX => value.as_bytes(),
            _ => b"",
        })
    }
}

/// The longest value of a header that is a key.
pub const KEY_MAX: usize = 4_096;
