use std::borrow::Cow;

use redis::ServerError;

/// Why a call gave no answer. [`Error::may_have_run`] says whether it can be sent again without counting twice.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The script did not run: no connection, no owner of the slot, a server that cannot serve now.
    #[error("redis is unavailable: {reason}")]
    Unavailable {
        /// What was tried and failed.
        reason: Cow<'static, str>,
    },
    /// The script was sent and no answer came, so it may have run or may still run.
    #[error("redis did not answer, the script may have run: {reason}")]
    Unknown {
        /// What happened to the answer.
        reason: Cow<'static, str>,
    },
    /// The server answered with an error.
    #[error("redis answered with an error: {code} {message}")]
    Server {
        /// The first word of the answer, such as `WRONGTYPE`.
        code: String,
        /// The rest of it.
        message: String,
    },
    /// The script ran and did not keep to the contract of one element per job.
    #[error("a script broke its contract: {reason}")]
    BadReply {
        /// What was expected and what came.
        reason: Cow<'static, str>,
    },
    /// More jobs wait for this server than `Options::queue` allows. Nothing was sent.
    #[error("too many calls wait for redis")]
    Overloaded,
    /// The URL cannot be used. The text never holds the password.
    #[error("invalid redis URL: {reason}")]
    InvalidUrl {
        /// What is wrong with it, and what would be right.
        reason: Cow<'static, str>,
    },
}

impl Error {
    /// False only when it is certain that the script has had no effect and never will.
    pub fn may_have_run(&self) -> bool {
        match self {
            Self::Unavailable { .. } | Self::Overloaded | Self::InvalidUrl { .. } => false,
            Self::Unknown { .. } | Self::BadReply { .. } => true,
            // A script has no rollback, so an error inside it leaves what it wrote before. The codes listed are only
            // given before the first write.
            Self::Server { code, .. } => !matches!(code.as_str(), "CROSSSLOT" | "MOVED" | "NOSCRIPT"),
        }
    }

    pub(super) fn unavailable(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::Unavailable { reason: reason.into() }
    }

    pub(super) fn unknown(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::Unknown { reason: reason.into() }
    }

    pub(super) fn invalid_url(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::InvalidUrl { reason: reason.into() }
    }
}

/// How one attempt failed, and with that what may be done next.
#[derive(Clone, Debug)]
pub(super) enum Failure {
    /// Another server owns the slot.
    Moved { address: String },
    /// The slot is on its way to another server, which has this key already.
    Ask { address: String },
    /// The server cannot serve this now and says that it did not try: the cluster is being put in order.
    Busy { code: String, message: String },
    /// The server serves nobody, or not us, and will not soon: it has not tried.
    Refused { code: String, message: String },
    /// The server has become a replica.
    ReadOnly,
    /// There was no connection, so nothing was sent.
    Disconnected,
    /// Sent, and the answer will not come.
    Lost { reason: Cow<'static, str> },
    /// Nothing to be done about it.
    Final(Error),
}

impl Failure {
    /// An error in place of the answer of a whole call.
    pub(super) fn from_call(error: &ServerError) -> Self {
        let message = error.details().unwrap_or_default();
        let address = || message.rsplit(' ').next().unwrap_or_default().to_owned();
        match error.code() {
            "MOVED" => Self::Moved { address: address() },
            "ASK" => Self::Ask { address: address() },
            "READONLY" => Self::ReadOnly,
            // Before Redis 7 the code of an error inside a script is part of the text. No write can have come first:
            // all of them are refused.
            "ERR" if message.contains("-READONLY You can't write") => Self::ReadOnly,
            code @ ("TRYAGAIN" | "CLUSTERDOWN") => Self::Busy { code: code.to_owned(), message: message.to_owned() },
            // A script that it refuses it refuses before the first write.
            code @ ("BUSY" | "LOADING" | "MASTERDOWN" | "MISCONF" | "NOAUTH" | "NOPERM" | "NOREPLICAS" | "OOM"
            | "WRONGPASS") => Self::Refused { code: code.to_owned(), message: message.to_owned() },
            _ => Self::from_job(error),
        }
    }

    /// An error in place of the answer of one job: the script ran, so no code proves the contrary.
    pub(super) fn from_job(error: &ServerError) -> Self {
        Self::Final(Error::Server {
            code: error.code().to_owned(),
            message: error.details().unwrap_or_default().to_owned(),
        })
    }

    /// What the caller is told when this was the last attempt; `sent` if this or an earlier one may have run.
    pub(super) fn into_error(self, server: &str, sent: bool) -> Error {
        let reason: Cow<'static, str> = match self {
            Self::Final(error) => return error,
            Self::Lost { reason } => return Error::unknown(format!("{server}: {reason}")),
            Self::Moved { address } => format!("{server} sent us to {address} once too often").into(),
            Self::Ask { address } => format!("{server} asked us to ask {address} once too often").into(),
            Self::Busy { code, message } | Self::Refused { code, message } => {
                format!("{server}: {code} {message}").into()
            }
            Self::ReadOnly => format!("{server} is a read-only replica").into(),
            Self::Disconnected => format!("{server} is not connected").into(),
        };
        if sent { Error::unknown(reason) } else { Error::unavailable(reason) }
    }
}
