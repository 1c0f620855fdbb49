//! The monitor door: what operators see, as the public contract has it.
//!
//! # Guarantee
//! - Who may see: see [`door_secret`](crate::door_secret). A snapshot has keys as callers sent
//!   them.
//! - A snapshot is put together on a thread that decides nothing, one at a time.
//! - What a watcher gets and what it loses: see [`feed`](super::feed). Its stream ends when the
//!   service drains.
//!
//! # Proven by
//! `tests/it/monitor.rs`, and the public Python client in `tests/witness` at the root.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use admittance_proto::v1;
use admittance_proto::v1::monitor_server::Monitor;
use tokio::sync::{Semaphore, watch};
use tokio_stream::Stream;
use tonic::{Request, Response, Status};

use super::feed::{WATCHERS, Watch};
use super::snapshot::{event, snapshot};
use crate::door_secret::{DoorSecret, Guarded};
use crate::load::Peer;
use crate::service::Service;

/// The door to one service.
#[derive(Clone, Debug)]
pub(crate) struct MonitorDoor {
    service: Arc<Service>,
    secret: DoorSecret,
    draining: watch::Receiver<bool>,
    /// Who is looking.
    looking: Arc<Semaphore>,
}

impl MonitorDoor {
    pub(crate) fn new(
        service: Arc<Service>,
        secret: DoorSecret,
        draining: watch::Receiver<bool>,
    ) -> Self {
        Self { service, secret, draining, looking: Arc::new(Semaphore::new(1)) }
    }

    fn let_in<T>(&self, request: &Request<T>) -> Result<(), Status> {
        let peer = request.extensions().get::<Peer>().map(|peer| peer.address);
        let let_in = self.secret.admits(Guarded::Monitor, peer, request.metadata().as_ref());
        let_in.map_err(|why| Status::unauthenticated(why.to_string()))
    }
}

#[tonic::async_trait]
impl Monitor for MonitorDoor {
    async fn get_snapshot(
        &self,
        request: Request<v1::GetSnapshotRequest>,
    ) -> Result<Response<v1::GetSnapshotResponse>, Status> {
        self.let_in(&request)?;
        let failed = |_| Status::internal("monitor: the snapshot could not be taken; ask again");
        let looking = Arc::clone(&self.looking).acquire_owned().await;
        let looking = looking.map_err(|_| Status::unavailable("monitor: the service ends"))?;
        let service = Arc::clone(&self.service);
        let taken = tokio::task::spawn_blocking(move || {
            let taken = snapshot(&service);
            drop(looking);
            taken
        });
        let snapshot = Some(taken.await.map_err(failed)?);
        Ok(Response::new(v1::GetSnapshotResponse { snapshot }))
    }

    type WatchStream = Watched;

    async fn watch(&self, request: Request<v1::WatchRequest>) -> Result<Response<Watched>, Status> {
        self.let_in(&request)?;
        let v1::WatchRequest { policy } = request.into_inner();
        if policy.len() > NAME_MAX {
            return Err(Status::invalid_argument(format!(
                "monitor: a policy's name has at most {NAME_MAX} bytes"
            )));
        }
        let Some(watch) = self.service.monitor().feed.watch(&policy) else {
            return Err(Status::resource_exhausted(format!(
                "monitor: {WATCHERS} watch already, which is the most; end one of them"
            )));
        };
        let mut draining = self.draining.clone();
        let until = Box::pin(async move {
            let _ = draining.wait_for(|draining| *draining).await;
        });
        Ok(Response::new(Watched { watch, draining: Some(until) }))
    }
}

/// Denials as they happen, until the service drains.
pub(crate) struct Watched {
    watch: Watch,
    /// Until when, unless that is over.
    draining: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl Stream for Watched {
    type Item = Result<v1::WatchResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(draining) = &mut self.draining else { return Poll::Ready(None) };
        if draining.as_mut().poll(context).is_ready() {
            self.draining = None;
            return Poll::Ready(None);
        }
        self.watch.queue.poll_recv(context).map(|denial| {
            let denial = denial.as_ref().map(event);
            denial.map(|denial| Ok(v1::WatchResponse { denial: Some(denial) }))
        })
    }
}

/// No policy has a longer name.
const NAME_MAX: usize = 256;
