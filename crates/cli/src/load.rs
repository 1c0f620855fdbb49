//! `load`: how a running service stands against its load.

use std::fmt::Write as _;
use std::process::ExitCode;

use admittance_proto::load::load_client::LoadClient;
use admittance_proto::load::{LoadStatusRequest, LoadStatusResponse};

use crate::Failure;
use crate::args::LoadArgs;
use crate::ask::call_on;
use crate::shown::{json_text, print, printable};

/// Shows how a service stands.
pub(crate) fn load(args: &LoadArgs) -> Result<ExitCode, Failure> {
    let status = call_on(&args.target, async move |channel| {
        LoadClient::new(channel).status(LoadStatusRequest {}).await
    })?;
    print(&if args.json { json(&status) } else { text(&status) });
    Ok(ExitCode::SUCCESS)
}

fn text(status: &LoadStatusResponse) -> String {
    if !status.enabled {
        return "load is not shed: load: off, or --no-load-shedding\n".into();
    }
    let LoadStatusResponse { percent, allowed, rejected, step, waiting, .. } = status;
    let mut text = format!("{percent}% may start  {allowed} allowed, {rejected} rejected\n");
    let classes = status.classes.iter();
    let classes = classes.map(|class| format!("{} {}", printable(&class.name), class.rejected));
    let room = status.room.map_or_else(|| "any number".into(), |room| room.to_string());
    let probes = format!(
        "{} sent, {} finished, {} lost",
        status.probes_sent, status.probes_finished, status.probes_lost
    );
    let delay = format!("{} us on average, spread {} us", status.average_us, status.spread_us);
    for (what, value) in [
        ("rejected", classes.collect::<Vec<_>>().join(", ")),
        ("delay", delay),
        ("waiting", format!("{waiting} of {room}")),
        ("level", format!("judged {} times, moved {}", status.adjustments, status.moves)),
        ("step", step.to_string()),
        ("probes", probes),
        ("stuck workers", status.stuck_workers.to_string()),
    ] {
        let _ = writeln!(text, "  {what:<13}  {value}");
    }
    text
}

/// The status on one line.
fn json(status: &LoadStatusResponse) -> String {
    let LoadStatusResponse { enabled, percent, allowed, rejected, step, waiting, .. } = status;
    let LoadStatusResponse { average_us, spread_us, adjustments, moves, stuck_workers, .. } =
        status;
    let LoadStatusResponse { probes_sent, probes_finished, probes_lost, .. } = status;
    let room = status.room.map_or_else(|| "null".into(), |room| room.to_string());
    let classes = status.classes.iter();
    let classes = classes.map(|class| format!("{}:{}", json_text(&class.name), class.rejected));
    let classes = classes.collect::<Vec<_>>().join(",");
    format!(
        "{{\"enabled\":{enabled},\"percent\":{percent},\"allowed\":{allowed},\
         \"rejected\":{rejected},\"rejected_by_class\":{{{classes}}},\"step\":{step},\
         \"average_us\":{average_us},\"spread_us\":{spread_us},\"waiting\":{waiting},\
         \"room\":{room},\"probes_sent\":{probes_sent},\"probes_finished\":{probes_finished},\
         \"probes_lost\":{probes_lost},\"adjustments\":{adjustments},\"moves\":{moves},\
         \"stuck_workers\":{stuck_workers}}}\n"
    )
}
