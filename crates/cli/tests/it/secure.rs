//! The real binary behind TLS, asked by itself, by curl and by openssl; and its secrets, which it
//! keeps.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::service::{Service, run};
use admittance_testkit::certificates::{Authority, Signed};

fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}

/// A service that speaks TLS, for clients of this authority only if `is_mutual`.
fn serving(authority: &Authority, is_mutual: bool) -> (Service, Signed) {
    let own = authority.sign("server", "127.0.0.1");
    let mut args = vec!["--tls-cert", text(&own.certificate), "--tls-key", text(&own.key)];
    if is_mutual {
        args.extend(["--tls-ca", text(&authority.certificate)]);
    }
    (Service::start(&args), own)
}

fn said(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    format!("{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(err))
}

fn curl(args: &[&str]) -> Output {
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--max-time", "20"]).args(args);
    curl.output().expect("curl is installed")
}

#[test]
fn every_command_asks_over_tls() {
    let authority = Authority::new("commands");
    let (service, _) = serving(&authority, true);
    assert!(service.greeting.contains("TLS: for clients with a certificate"));
    let flags = format!("--target https://{} --tls-ca FILE --tls-cert FILE", service.address);
    assert!(service.greeting.contains(&flags), "{}", service.greeting);
    let ann = authority.sign("ann", "ann");
    let target = format!("https://{}", service.address);
    let (ca, cert, key) = (&authority.certificate, &ann.certificate, &ann.key);
    let known = ["--target", &target, "--tls-ca", text(ca), "--tls-cert", text(cert)];
    let known = [&known[..], &["--tls-key", text(key)]].concat();
    for command in [
        vec!["check", "api", "ann"],
        vec!["peek", "api", "ann"],
        vec!["forecast", "api", "ann"],
        vec!["load"],
    ] {
        let output = run(&[command.clone(), known.clone()].concat());
        assert!(output.status.success(), "{command:?}: {}", said(&output));
    }
    // Without a certificate of our own, with one of nobody, by another name, and in the clear.
    let bare = &known[..4];
    let other = Authority::new("nobody");
    let unknown = other.sign("mallory", "mallory");
    let (cert, key) = (text(&unknown.certificate), text(&unknown.key));
    let unknown = [bare, &["--tls-cert", cert, "--tls-key", key]].concat();
    let by_name = [&known[..], &["--tls-name", "elsewhere"]].concat();
    let untrusted = ["--target", &target, "--tls-ca", text(&other.certificate)];
    for wrong in [bare, &unknown, &by_name, &untrusted, &["--target", &service.address]] {
        let output = run(&[&["check", "api", "ann"], wrong].concat());
        assert_eq!(output.status.code(), Some(2), "{wrong:?}: {}", said(&output));
    }
    let output = run(&["check", "api", "ann", "--target", &target]);
    assert!(said(&output).contains("TLS needs --tls-ca FILE"), "{}", said(&output));
    // None of them was counted.
    let output = run(&[&["check", "api", "ann", "--json"], &known[..]].concat());
    assert!(said(&output).contains("\"remaining\":3"), "{}", said(&output));
}

#[test]
fn curl_is_answered_over_tls_and_not_otherwise() {
    let authority = Authority::new("curl");
    let (service, _) = serving(&authority, true);
    let ann = authority.sign("ann", "ann");
    let url = format!("https://{}/healthz", service.address);
    let (ca, cert, key) = (&authority.certificate, &ann.certificate, &ann.key);
    let known = ["--cacert", text(ca), "--cert", text(cert), "--key", text(key)];
    for version in
        [["--http1.1", "--tlsv1.3"], ["--http2", "--tlsv1.3"], ["--http1.1", "--tlsv1.2"]]
    {
        let output = curl(&[&known[..], &version, &[&url]].concat());
        assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(0), &b"ok\n"[..]));
    }
    let old = ["--tls-max", "1.1", "--ciphers", "DEFAULT:@SECLEVEL=0"];
    let in_the_clear = format!("http://{}/healthz", service.address);
    for (wrong, url) in [
        (&known[..2], &url),
        (&[&known[..], &old].concat()[..], &url),
        (&known[2..], &url),
        (&[][..], &in_the_clear),
    ] {
        let output = curl(&[wrong, &[url]].concat());
        assert!(!output.status.success(), "{wrong:?}");
        assert!(output.stdout.is_empty(), "{wrong:?}: {}", said(&output));
    }
}

#[test]
fn openssl_agrees_on_what_is_spoken() {
    let authority = Authority::new("openssl");
    let (service, _) = serving(&authority, false);
    for (version, alpn) in [("-tls1_2", "h2"), ("-tls1_3", "h2"), ("-tls1_3", "http/1.1")] {
        let output = Command::new("openssl")
            .args(["s_client", "-connect", &service.address, version, "-alpn", alpn])
            .args(["-CAfile", text(&authority.certificate), "-verify_return_error"])
            .stdin(Stdio::null())
            .output()
            .expect("openssl is installed");
        let said = said(&output);
        assert!(said.contains(&format!("ALPN protocol: {alpn}")), "{said}");
        assert!(said.contains("Verify return code: 0 (ok)"), "{said}");
    }
}

#[test]
fn certificates_are_read_again_and_bad_ones_change_nothing() {
    let (old, new) = (Authority::new("before"), Authority::new("after"));
    let (mut service, own) = serving(&old, false);
    let url = format!("https://{}/healthz", service.address);
    let is_known = |authority: &Authority| {
        curl(&["--cacert", text(&authority.certificate), &url]).status.success()
    };
    assert!(is_known(&old) && !is_known(&new));
    // A key that does not go with it.
    let other = new.sign("server", "127.0.0.1");
    std::fs::copy(&other.certificate, &own.certificate).expect("copied");
    service.signal("HUP");
    service.complains("the old certificates stay");
    assert!(is_known(&old) && !is_known(&new));
    std::fs::copy(&other.key, &own.key).expect("copied");
    service.signal("HUP");
    service.complains("certificates read again");
    assert!(is_known(&new) && !is_known(&old));
    // Without a signal, too.
    let third = old.sign("again", "127.0.0.1");
    std::fs::copy(&third.key, &own.key).expect("copied");
    std::fs::copy(&third.certificate, &own.certificate).expect("copied");
    service.complains("certificates read again");
    assert!(is_known(&old) && !is_known(&new));
}

#[test]
fn others_are_served_only_over_tls_or_when_that_is_asked_for() {
    let output = run(&["serve", "--host", "0.0.0.0", "--port", "0"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("add --tls-cert FILE and --tls-key FILE"), "{}", said(&output));
    let authority = Authority::new("half");
    let own = authority.sign("server", "localhost");
    let (cert, key, ca) = (text(&own.certificate), text(&own.key), text(&authority.certificate));
    for half in [vec!["--tls-cert", cert], vec!["--tls-key", key], vec!["--tls-ca", ca]] {
        let output = run(&[&["serve", "--port", "0"], &half[..]].concat());
        assert_eq!(output.status.code(), Some(2), "{half:?}: {}", said(&output));
    }
    let wrong = ["serve", "--port", "0", "--tls-cert", key, "--tls-key", cert];
    let output = run(&wrong);
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("it must hold a certificate in PEM form"), "{}", said(&output));
}

const LENT: &str =
    "limiters: { a: { strategy: fixedWindow, limit: 9, period: 1h, federated: {} } }";
const SECRET: &str = "correct-horse-battery-staple";

#[test]
fn a_secret_comes_from_a_file_or_the_environment_and_is_never_shown() {
    let authority = Authority::new("secrets");
    let file = |name: &str, text: &str| {
        let path = authority.directory.join(name);
        std::fs::write(&path, text).expect("written");
        path
    };
    let config = file("policies.yaml", LENT);
    let secret = file("secret", &format!("{SECRET}\n"));
    let of_file = ["--config", text(&config), "--fleet-secret-file", text(&secret)];
    let of_flag = ["--config", text(&config), "--fleet-secret", SECRET];
    let variable = [("ADMITTANCE_FLEET_SECRET", SECRET)];
    let no_variable: [(&str, &str); 0] = [];
    for (args, variables) in
        [(&of_file[..], &no_variable[..]), (&of_flag, &no_variable), (&of_file[..2], &variable)]
    {
        let service = Service::start_with(args, variables);
        assert!(!service.greeting.contains(SECRET));
        for (shown, code) in [(SECRET, 0), ("correct-horse", 16), ("", 16)] {
            let header = format!("x-fleet-secret: {shown}");
            let answer = fleet_code(&service.address, &header);
            assert_eq!(answer, Some(code), "{shown:?} of {args:?}");
        }
        service.signal("TERM");
        let (_, complaints) = service.wait();
        assert!(!complaints.contains(SECRET), "{complaints}");
    }
    let validated = run(&[&["serve", "--validate"], &of_flag[..]].concat());
    assert!(validated.status.success() && !said(&validated).contains(SECRET));
    for (name, content) in [("empty", "\n"), ("binary", "\u{7f}"), ("two", "hush hush\n")] {
        let path = file(name, content);
        let output = run(&["serve", "--port", "0", "--fleet-secret-file", text(&path)]);
        assert_eq!(output.status.code(), Some(2), "{name}");
        assert!(!said(&output).contains("hush"), "{}", said(&output));
    }
    // A wrong flag beside it must not bring it to light either.
    let output = run(&["serve", "--fleet-secret", SECRET, "--port", "none"]);
    assert!(!said(&output).contains(SECRET), "{}", said(&output));
}

/// The code that the fleet door answers a request for one credit with, asked by curl: a message of
/// `policy: "a", caller: { domain: "d" }, wants: 1, axis: RATE`.
fn fleet_code(address: &str, header: &str) -> Option<u32> {
    use prost::Message as _;
    let caller = Some(admittance_proto::v1::Caller { domain: "d".into(), ..Default::default() });
    let axis = admittance_proto::v1::Axis::Rate.into();
    let request = admittance_proto::v1::ReserveRequest {
        policy: "a".into(),
        caller,
        wants: 1,
        axis,
        ..Default::default()
    };
    let mut framed = vec![0];
    framed.extend(u32::try_from(request.encoded_len()).expect("short").to_be_bytes());
    framed.extend(request.encode_to_vec());
    let url = format!("http://{address}/throttlekit.v1.Fleet/Reserve");
    let mut curl = Command::new("curl")
        .args(["--silent", "--max-time", "20", "--http2-prior-knowledge", "--data-binary", "@-"])
        .args(["--dump-header", "-", "--output", "/dev/null", "--header", header])
        .args(["--header", "content-type: application/grpc", "--header", "te: trailers", &url])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("curl is installed");
    let mut stdin = curl.stdin.take().expect("piped");
    std::io::Write::write_all(&mut stdin, &framed).expect("sent");
    drop(stdin);
    let output = curl.wait_with_output().expect("it ends");
    let headers = String::from_utf8(output.stdout).expect("text");
    let status = headers.lines().find_map(|line| line.strip_prefix("grpc-status: "));
    status.and_then(|status| status.trim().parse().ok())
}
