//! `sekisho sessions list USER`, `sekisho sessions end USER [SID]`

use clap::Args;
use serde_json::Value;

use crate::client::{Client, segment};
use crate::exit::{Failure, Outcome};
use crate::{ServerArgs, output};

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    user: String,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, Args)]
pub(crate) struct EndArgs {
    user: String,
    /// Only this one; left out, all of the user's sessions and tokens end
    sid: Option<String>,
    /// All sessions but this one; tokens stay
    #[arg(long, value_name = "SID", conflicts_with = "sid")]
    except: Option<String>,
    #[command(flatten)]
    server: ServerArgs,
}

pub(crate) fn list(args: &ListArgs) -> Result<Outcome, Failure> {
    let answer = Client::new(&args.server).get(&format!("/v1/sessions/{}", segment(&args.user)), &[])?;
    if args.server.json {
        output::json(&answer.body);
        return Ok(Outcome::Done);
    }
    let text = |value: &Value| value.as_str().map_or_else(|| "-".to_owned(), str::to_owned);
    let sessions = answer.body["sessions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let rows = sessions.iter().map(|session| {
        let ttl = session["ttl_seconds"].to_string();
        vec![
            text(&session["session_id"]),
            text(&session["created_at"]),
            ttl,
            text(&session["ip_address"]),
            text(&session["user_agent"]),
        ]
    });
    output::table(&["session", "created", "ttl s", "address", "user agent"], rows);
    Ok(Outcome::Done)
}

pub(crate) fn end(args: &EndArgs) -> Result<Outcome, Failure> {
    let client = Client::new(&args.server);
    let user = segment(&args.user);
    let answer = match &args.sid {
        Some(sid) => client.delete(&format!("/v1/sessions/{user}/{}", segment(sid)), &[])?,
        None => {
            let except = args.except.as_deref().map(|sid| ("except", sid));
            client.delete(&format!("/v1/sessions/{user}"), except.as_slice())?
        }
    };
    if args.server.json {
        output::json(&answer.body);
    } else {
        output::line(match (&args.sid, &args.except) {
            (Some(_), _) => "the session has ended",
            (None, Some(_)) => "all other sessions have ended",
            (None, None) => "all sessions and tokens have ended",
        });
    }
    Ok(Outcome::Done)
}
