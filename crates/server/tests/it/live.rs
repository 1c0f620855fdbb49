//! A live service on a free port, with a clock that the test holds.

use std::net::SocketAddr;
use std::sync::Arc;

use admittance::{ManualClock, Micros};
use admittance_proto::v1::rate_limiter_client::RateLimiterClient;
use admittance_server::{
    Config, DoorSecret, Doors, Drained, Fail, ServeError, Service, SharedClock, Shedding,
    serve_with,
};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::transport::Channel;

pub(crate) struct Live {
    pub(crate) address: SocketAddr,
    pub(crate) clock: ManualClock,
    pub(crate) service: Arc<Service>,
    stop: oneshot::Sender<()>,
    done: JoinHandle<Result<Drained, ServeError>>,
}

/// 2023-11-14T22:13:20Z, and a part of a millisecond.
pub(crate) const START_US: u64 = 1_700_000_000_000_250;

/// Sheds nothing.
pub(crate) const OFF: Shedding = Shedding(None);

/// The policies of a service that sheds nothing: what tests count must not depend on how busy the
/// machine is.
pub(crate) fn config(policies: &str, fail: Fail) -> Config {
    let config = Config::parse("test", policies, fail).expect("valid policies");
    Config { load: OFF, ..config }
}

impl Live {
    pub(crate) async fn with(policies: &str) -> Self {
        let clock = ManualClock::at(Micros::from_epoch_us(START_US).expect("in range"));
        Self::on(policies, Arc::new(clock.clone()), clock).await
    }

    pub(crate) async fn on(policies: &str, shared: SharedClock, clock: ManualClock) -> Self {
        Self::of(Arc::new(Service::new(&config(policies, Fail::Open), shared)), clock).await
    }

    /// With a secret for those who borrow.
    pub(crate) async fn with_secret(policies: &str, secret: DoorSecret) -> Self {
        let clock = ManualClock::at(Micros::from_epoch_us(START_US).expect("in range"));
        let service =
            Arc::new(Service::new(&config(policies, Fail::Open), Arc::new(clock.clone())));
        Self::serving(service, clock, Doors { fleet: secret, ..Doors::default() }).await
    }

    pub(crate) async fn of(service: Arc<Service>, clock: ManualClock) -> Self {
        Self::serving(service, clock, Doors::default()).await
    }

    pub(crate) async fn serving(service: Arc<Service>, clock: ManualClock, doors: Doors) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let (stop, stopped) = oneshot::channel::<()>();
        let until = async {
            let _ = stopped.await;
        };
        let done = tokio::spawn(serve_with(listener, Arc::clone(&service), doors, until));
        Self { address, clock, service, stop, done }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) async fn channel(&self) -> Channel {
        let endpoint = Channel::from_shared(self.url()).expect("a uri");
        endpoint.connect().await.expect("the port is open")
    }

    pub(crate) async fn client(&self) -> RateLimiterClient<Channel> {
        RateLimiterClient::new(self.channel().await).max_decoding_message_size(usize::MAX)
    }

    /// Asks the service to stop; says how it did once it has.
    pub(crate) fn stop(self) -> JoinHandle<Result<Drained, ServeError>> {
        let _ = self.stop.send(());
        self.done
    }
}
