//! The standard health service.
//!
//! Written here rather than taken whole because of what must happen on a drain: watchers are told
//! NOT_SERVING and their streams end, so that a watcher does not hold up the drain.

use std::pin::Pin;
use std::sync::Arc;

use admittance_proto::{ADMISSIONS, BUDGETS, FLEET, LOAD, MONITOR, RATE_LIMITER};
use tokio::sync::watch;
use tokio_stream::Stream;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::Health;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::Service;
use crate::config::quoted;

/// Answers whether the service serves.
#[derive(Clone, Debug)]
pub(crate) struct Healthy {
    draining: watch::Receiver<bool>,
    service: Arc<Service>,
}

/// Which services are there that not every configuration has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Served {
    pub(crate) fleet: bool,
    pub(crate) budgets: bool,
    pub(crate) monitor: bool,
}

impl Served {
    /// How many there can be.
    pub(crate) const COUNT: usize = 8;

    /// What is there now: a reload may have changed it.
    pub(crate) fn by(service: &Service) -> Self {
        Self {
            fleet: service.has_federated(),
            budgets: service.has_budgets(),
            monitor: service.monitor().is_on(),
        }
    }

    /// Which of those that can be it is.
    pub(crate) fn nth(self) -> usize {
        usize::from(self.fleet) * 4 + usize::from(self.budgets) * 2 + usize::from(self.monitor)
    }

    /// Their full names.
    pub(crate) fn names(self) -> impl Iterator<Item = &'static str> {
        let Self { fleet, budgets, monitor } = self;
        let all = [(fleet, FLEET), (budgets, BUDGETS), (monitor, MONITOR)];
        all.into_iter().filter_map(|(is_served, name)| is_served.then_some(name))
    }
}

impl Healthy {
    pub(crate) const fn new(draining: watch::Receiver<bool>, service: Arc<Service>) -> Self {
        Self { draining, service }
    }

    fn is_known(&self, service: &str) -> bool {
        let mut others = Served::by(&self.service).names();
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
