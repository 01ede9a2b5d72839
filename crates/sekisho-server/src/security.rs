//! Security events: credentials that were shown and are none. For those who watch a log for somebody who tries; whoever shows
//! nothing has not tried. Ten a second of each kind, and what could be used stands there only as a hash.

use std::net::IpAddr;

use sekisho::sessions::SessionId;
use sekisho::tokens::Refusal;

use crate::audit::hashed;
use crate::quiet::quietly;

/// ASVS and the session management cheat sheet want to hear of every id that is not known.
pub(crate) fn unknown_session(id: &SessionId, client: IpAddr) {
    let (user, session) = (id.user.as_str(), hashed(id.sid.as_str()));
    quietly!(warn, target: "security", event = "session_unknown", ?user, session, %client, "a session was shown that is not known or has ended");
}

/// A cookie that names no session, or two of them.
pub(crate) fn odd_cookie(client: IpAddr) {
    quietly!(warn, target: "security", event = "session_malformed", %client, "a session cookie was shown that is none");
}

/// A session and a token of two users.
pub(crate) fn two_users(session: &str, client: IpAddr) {
    quietly!(warn, target: "security", event = "users_differ", user = ?session, %client, "a session and a token of two users were shown");
}

pub(crate) fn refused_token(token: &str, refusal: &Refusal, client: IpAddr) {
    let token = hashed(token);
    if matches!(refusal, Refusal::Expired) {
        // That is how every token ends.
        quietly!(info, target: "security", event = "token_expired", token, %client, "a token was shown that has expired");
    } else {
        quietly!(warn, target: "security", event = "token_refused", reason = %refusal, token, %client, "a token was refused");
    }
}

/// Somebody showed something else than the API's token.
pub(crate) fn refused_operator(door: &'static str, client: IpAddr) {
    quietly!(warn, target: "security", event = "api_token_refused", door, %client, "the API was asked with a wrong token");
}
