//! The standard health service.
//!
//! Written here rather than taken whole because of what must happen on a drain: watchers are told
//! NOT_SERVING and their streams end, so that a watcher does not hold up the drain.

use std::pin::Pin;

use admittance_proto::{ADMISSIONS, BUDGETS, FLEET, LOAD, RATE_LIMITER};
use tokio::sync::watch;
use tokio_stream::Stream;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::Health;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::config::quoted;

/// Answers whether the service serves.
#[derive(Clone, Debug)]
pub(crate) struct Healthy {
    draining: watch::Receiver<bool>,
    served: Served,
}

/// Which services are there that not every configuration has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Served {
    pub(crate) fleet: bool,
    pub(crate) budgets: bool,
}

impl Served {
    /// Their full names.
    pub(crate) fn names(self) -> impl Iterator<Item = &'static str> {
        let fleet = self.fleet.then_some(FLEET);
        fleet.into_iter().chain(self.budgets.then_some(BUDGETS))
    }
}

impl Healthy {
    pub(crate) const fn new(draining: watch::Receiver<bool>, served: Served) -> Self {
        Self { draining, served }
    }

    fn is_known(&self, service: &str) -> bool {
        let mut others = self.served.names();
        service.is_empty()
            || [RATE_LIMITER, ADMISSIONS, LOAD].contains(&service)
            || others.any(|name| name == service)
    }

    fn status(&self) -> ServingStatus {
        if *self.draining.borrow() { ServingStatus::NotServing } else { ServingStatus::Serving }
    }
}

type Watched = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

#[tonic::async_trait]
impl Health for Healthy {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let service = request.into_inner().service;
        if self.is_known(&service) {
            Ok(Response::new(answer(self.status())))
        } else {
            Err(Status::not_found(format!("unknown service {}", quoted(&service))))
        }
    }

    type WatchStream = Watched;

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Watched>, Status> {
        let known = self.is_known(&request.into_inner().service);
        let first = if known { self.status() } else { ServingStatus::ServiceUnknown };
        let (sender, receiver) = tokio::sync::mpsc::channel(2);
        // Two messages at most, so neither send waits.
        let _ = sender.try_send(Ok(answer(first)));
        let mut draining = self.draining.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = sender.closed() => {}
                _ = draining.wait_for(|draining| *draining) => {
                    if known && first != ServingStatus::NotServing {
                        let _ = sender.try_send(Ok(answer(ServingStatus::NotServing)));
                    }
                }
            }
        });
        let stream = tokio_stream::wrappers::ReceiverStream::new(receiver);
        Ok(Response::new(Box::pin(stream)))
    }
}

fn answer(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}
