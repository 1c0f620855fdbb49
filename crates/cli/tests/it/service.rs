//! The real binary, serving on a free port.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Output, Stdio};

pub(crate) struct Service {
    child: Child,
    pub(crate) address: String,
    /// What it printed at its start.
    pub(crate) greeting: String,
}

impl Service {
    pub(crate) fn start(args: &[&str]) -> Self {
        Self::start_with(args, &[])
    }

    /// With these variables in its environment too.
    pub(crate) fn start_with(args: &[&str], variables: &[(&str, &str)]) -> Self {
        // What these tests count must not depend on how busy the machine is.
        Self::spawn(&[&["--no-load-shedding"], args].concat(), variables)
    }

    /// One that sheds load, as it does by default.
    pub(crate) fn start_shedding(args: &[&str]) -> Self {
        Self::spawn(args, &[])
    }

    fn spawn(args: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_admittance"))
            .args(["serve", "--port", "0"])
            .args(args)
            .envs(variables.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut greeting = String::new();
        let stdout = child.stdout.as_mut().expect("piped");
        for line in BufReader::new(stdout).lines() {
            let line = line.expect("text");
            greeting.push_str(&line);
            greeting.push('\n');
            if line.starts_with("try: ") {
                break;
            }
        }
        let address = greeting.split_whitespace().find(|word| word.starts_with("127.0.0.1:"));
        let address = address.expect("an address").to_owned();
        Self { child, address, greeting }
    }

    /// A line of what the kernel says of the process, such as `VmRSS` in kB.
    pub(crate) fn status(&self, name: &str) -> u64 {
        let status = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(status).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let value = line.and_then(|line| line.split_whitespace().next());
        value.and_then(|value| value.parse().ok()).expect("a number")
    }

    /// Sends a signal by its name.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &pid]).status();
        assert!(sent.expect("kill runs").success());
    }

    /// Waits for a line of what it complains about that has these words.
    pub(crate) fn complains(&mut self, words: &str) -> String {
        let stderr = self.child.stderr.as_mut().expect("piped");
        let mut said = String::new();
        // Byte by byte: what comes after is read by others.
        let mut byte = [0];
        while stderr.read(&mut byte).expect("a byte") > 0 {
            said.push(char::from(byte[0]));
            if said.ends_with('\n') && said.contains(words) {
                break;
            }
        }
        said
    }

    /// Waits for the end; gives the exit code and what was complained about.
    pub(crate) fn wait(mut self) -> (Option<i32>, String) {
        let status = self.child.wait().expect("it ends");
        let mut complaints = String::new();
        let stderr = self.child.stderr.as_mut().expect("piped");
        stderr.read_to_string(&mut complaints).expect("text");
        (status.code(), complaints)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the binary to its end.
pub(crate) fn run(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_admittance")).args(args).output().expect("it runs")
}
