//! Encryption, and who is believed.

use crate::common;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use admittance::{Builtin, Span, StoreError, Window};
use admittance_postgres::PostgresStore;
use admittance_testkit::servers::PostgresServer;

fn run(program: &str, arguments: &[&str]) -> bool {
    let output = Command::new(program).args(arguments).output();
    output.expect("openssl is installed: apt-get install openssl").status.success()
}

/// A certificate for 127.0.0.1 and its key, readable by the user that the server runs as.
fn certificate(directory: &Path, name: &str) -> [String; 2] {
    let [certificate, key] =
        ["crt", "key"].map(|end| directory.join(format!("{name}.{end}")).display().to_string());
    assert!(run(
        "openssl",
        &[
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=test",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-addext",
            "basicConstraints=critical,CA:FALSE",
            "-keyout",
            &key,
            "-out",
            &certificate,
        ]
    ));
    // Only root can, and only root must.
    run("chown", &["postgres", &key]);
    [certificate, key]
}

#[test]
fn a_server_is_believed_as_the_mode_says() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let [trusted, key] = certificate(directory.path(), "server");
    let [other, _] = certificate(directory.path(), "other");
    let settings =
        ["ssl=on".into(), format!("ssl_cert_file={trusted}"), format!("ssl_key_file={key}")];
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    let server = PostgresServer::start_with(&settings).unwrap();
    let strategy: Builtin = Window::fixed(100, Span::from_secs(86_400)).unwrap().into();
    let ask = async |query: String| {
        let url = format!("{}?{query}", server.url());
        let builder = PostgresStore::builder(url).connections(1).reap_every(None);
        let store = builder.connect().await.unwrap();
        let answer = common::check(&store, "api", &strategy, b"ann").await;
        let encrypted = "SELECT bool_and(s.ssl) FROM pg_stat_ssl s JOIN pg_stat_activity a \
                         USING (pid) WHERE a.application_name = 'admittance'";
        (answer.map(|decision| decision.is_admit()), server.sql(encrypted).unwrap())
    };
    common::runtime().block_on(async {
        for query in ["sslmode=require", "sslmode=prefer"] {
            assert_eq!(ask(query.into()).await, (Ok(true), "t".into()), "{query}");
        }
        let verified = ask(format!("sslmode=verify-full&sslrootcert={trusted}")).await;
        assert_eq!(verified, (Ok(true), "t".into()));
        let (answer, _) = ask(format!("sslmode=verify-full&sslrootcert={other}")).await;
        assert!(matches!(answer, Err(StoreError::Refused { .. })), "{answer:?}");
    });
    let plain = common::database();
    common::runtime().block_on(async {
        let builder = PostgresStore::builder(format!("{}?sslmode=require", plain.url()));
        let store = builder.connections(1).connect().await.unwrap();
        let answer = common::check(&store, "api", &strategy, b"ann").await;
        assert!(matches!(answer, Err(StoreError::Refused { .. })), "{answer:?}");
    });
}
