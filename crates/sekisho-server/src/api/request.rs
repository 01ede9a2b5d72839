//! What callers may ask, as they write it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::net::IpAddr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use sekisho::gate::{Ask, Who};
use sekisho::identity::Facts;
use sekisho::key::{Endpoint, Subject};
use sekisho::limits::{Cost, Limits, MAX_AMOUNT, Policy};
use sekisho::{Error, Invalid};
use serde::Deserialize;
use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, Visitor};
use smallvec::{SmallVec, smallvec};

use super::object::Object;
use super::words;

/// More units or headers than this are no request; and looking for twins takes the square of it.
const MAX_ENTRIES: usize = 256;
pub(super) const MAX_BATCH: usize = 1000;
/// The end of the year 9999: no clock that is right goes further.
pub(super) const LATEST: u64 = 253_402_300_799_999;

/// One charge, for a `subject` or built from `facts`; or several in `charges`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Check", extend("oneOf" = words::ways_to_charge()))]
pub(super) struct CheckBody {
    /// The policy to decide by.
    #[schemars(with = "Option<words::PolicyName>")]
    policy: Option<String>,
    /// Whom to count, at most 512 bytes of UTF-8.
    #[schemars(with = "Option<words::SubjectText>")]
    subject: Option<String>,
    /// The part of an API that is counted apart, where the policy's keys tell endpoints apart.
    #[schemars(with = "Option<words::EndpointText>")]
    endpoint: Option<String>,
    /// What the policy builds the subject from.
    facts: Option<Object<FactsBody>>,
    cost: Option<CostBody>,
    /// Several charges: all of them are taken, or none.
    #[schemars(extend("minItems" = 1, "maxItems" = Limits::MAX_CHARGES))]
    charges: Option<Vec<Object<ChargeBody>>>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "CheckBatch")]
pub(super) struct BatchBody {
    /// Decided one after the other, each for itself.
    #[schemars(extend("minItems" = 1, "maxItems" = MAX_BATCH))]
    pub(super) checks: Vec<Object<CheckBody>>,
}

/// A check, and how long to hold it.
// Written out because serde cannot both flatten and refuse unknown fields.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Reserve", extend("oneOf" = words::ways_to_charge()))]
pub(super) struct ReserveBody {
    /// The policy to decide by.
    #[schemars(with = "Option<words::PolicyName>")]
    policy: Option<String>,
    /// Whom to count, at most 512 bytes of UTF-8.
    #[schemars(with = "Option<words::SubjectText>")]
    subject: Option<String>,
    /// The part of an API that is counted apart, where the policy's keys tell endpoints apart.
    #[schemars(with = "Option<words::EndpointText>")]
    endpoint: Option<String>,
    /// What the policy builds the subject from.
    facts: Option<Object<FactsBody>>,
    cost: Option<CostBody>,
    /// Several charges: all of them are held, or none.
    #[schemars(extend("minItems" = 1, "maxItems" = Limits::MAX_CHARGES))]
    charges: Option<Vec<Object<ChargeBody>>>,
    /// After so many milliseconds the reservation ends by itself. Left out: as the policy says.
    #[schemars(extend("minimum" = 1, "maximum" = Policy::MAX_LEASE.as_millis() as u64))]
    pub(super) lease_ms: Option<Amount>,
    /// The same key for the same subjects returns the first one's reservation. At most 256 bytes of UTF-8.
    #[schemars(with = "Option<words::IdempotencyKey>")]
    pub(super) idempotency_key: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Charge", extend("oneOf" = words::ways_to_name()))]
struct ChargeBody {
    /// The policy to decide by.
    #[schemars(with = "words::PolicyName")]
    policy: String,
    /// Whom to count, at most 512 bytes of UTF-8.
    #[schemars(with = "Option<words::SubjectText>")]
    subject: Option<String>,
    /// The part of an API that is counted apart, where the policy's keys tell endpoints apart.
    #[schemars(with = "Option<words::EndpointText>")]
    endpoint: Option<String>,
    /// What the policy builds the subject from.
    facts: Option<Object<FactsBody>>,
    cost: Option<CostBody>,
}

/// What is known of a request. A policy needs those that its `subject` names.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Facts")]
struct FactsBody {
    #[schemars(with = "Option<words::Address>")]
    ip: Option<IpAddr>,
    user_agent: Option<String>,
    user: Option<String>,
    method: Option<String>,
    /// The endpoint, where the policy's keys tell endpoints apart. At most 256 bytes of UTF-8.
    #[schemars(with = "Option<words::EndpointText>")]
    path: Option<String>,
    #[serde(default)]
    headers: Headers,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Settle")]
pub(super) struct SettleBody {
    /// The id that a reserve answered.
    #[schemars(with = "words::ReservationText")]
    pub(super) reservation: String,
    /// What it really cost, less or more. Units left out stay as reserved.
    #[serde(default)]
    pub(super) cost: CostBody,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Release")]
pub(super) struct ReleaseBody {
    /// The id that a reserve answered.
    #[schemars(with = "words::ReservationText")]
    pub(super) reservation: String,
}

/// Whose counters are meant.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Target")]
pub(super) struct TargetBody {
    /// The policy it is counted by.
    #[schemars(with = "words::PolicyName")]
    pub(super) policy: String,
    /// Whom it counts, at most 512 bytes of UTF-8.
    #[schemars(with = "words::SubjectText")]
    pub(super) subject: String,
    /// Needed where the policy's keys tell endpoints apart.
    #[schemars(with = "Option<words::EndpointText>")]
    pub(super) endpoint: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Grant")]
pub(super) struct GrantBody {
    /// The policy it is counted by.
    #[schemars(with = "words::PolicyName")]
    pub(super) policy: String,
    /// Whom it counts, at most 512 bytes of UTF-8.
    #[schemars(with = "words::SubjectText")]
    pub(super) subject: String,
    /// Needed where the policy's keys tell endpoints apart.
    #[schemars(with = "Option<words::EndpointText>")]
    pub(super) endpoint: Option<String>,
    /// How much to give back, at most what was used.
    #[schemars(extend("minProperties" = 1))]
    pub(super) cost: CostBody,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Override")]
pub(super) struct OverrideBody {
    /// The policy it is counted by.
    #[schemars(with = "words::PolicyName")]
    pub(super) policy: String,
    /// Whom it counts, at most 512 bytes of UTF-8.
    #[schemars(with = "words::SubjectText")]
    pub(super) subject: String,
    /// Needed where the policy's keys tell endpoints apart.
    #[schemars(with = "Option<words::EndpointText>")]
    pub(super) endpoint: Option<String>,
    /// Other limits, by the name of a rule. They replace an earlier override whole.
    #[schemars(extend("minProperties" = 1))]
    pub(super) limits: CostBody,
    /// Until when they hold, in Unix milliseconds.
    #[schemars(extend("maximum" = LATEST))]
    pub(super) until: Amount,
}

/// The charges of a request, and whether it listed them.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) asks: SmallVec<[Ask<'static>; 1]>,
    pub(super) listed: bool,
}

impl Asked {
    /// The gate names `charges[i]` only where there are several; a list of one is still a list to whoever wrote it.
    pub(super) fn placed(&self, error: Error) -> Error {
        match error {
            Error::Invalid(invalid) if self.listed && self.asks.len() == 1 => invalid.within("charges[0]").into(),
            error => error,
        }
    }
}

impl CheckBody {
    pub(super) fn asked(self) -> Result<Asked, Invalid> {
        let Some(charges) = self.charges else {
            let policy = self.policy.ok_or_else(|| Invalid::new("policy", "is missing"))?;
            let charge = ChargeBody {
                policy,
                subject: self.subject,
                endpoint: self.endpoint,
                facts: self.facts,
                cost: self.cost,
            };
            return Ok(Asked { asks: smallvec![charge.ask()?], listed: false });
        };
        let beside = [
            ("policy", self.policy.is_some()),
            ("subject", self.subject.is_some()),
            ("endpoint", self.endpoint.is_some()),
            ("facts", self.facts.is_some()),
            ("cost", self.cost.is_some()),
        ];
        if let Some((name, _)) = beside.iter().find(|(_, given)| *given) {
            return Err(Invalid::new(*name, "cannot stand beside `charges`; it belongs into each of them"));
        }
        let place = |i, invalid: Invalid| invalid.within(format_args!("charges[{i}]"));
        let asks = charges.into_iter().enumerate().map(|(i, charge)| charge.0.ask().map_err(|e| place(i, e)));
        Ok(Asked { asks: asks.collect::<Result<_, _>>()?, listed: true })
    }
}

impl ReserveBody {
    pub(super) fn asked(self) -> Result<Asked, Invalid> {
        let Self { policy, subject, endpoint, facts, cost, charges, .. } = self;
        CheckBody { policy, subject, endpoint, facts, cost, charges }.asked()
    }
}

impl ChargeBody {
    fn ask(self) -> Result<Ask<'static>, Invalid> {
        let who = match (self.subject, self.facts) {
            (Some(subject), None) => {
                let endpoint = self.endpoint.map(Endpoint::new).transpose()?;
                Who::Subject { subject: Subject::new(subject)?, endpoint }
            }
            (None, Some(_)) if self.endpoint.is_some() => {
                return Err(Invalid::new("endpoint", "is taken from `facts.path` where there are `facts`"));
            }
            (None, Some(Object(facts))) => Who::Facts(Box::new(facts.into())),
            (Some(_), Some(_)) => return Err(Invalid::new("facts", "cannot stand beside `subject`; give one of them")),
            (None, None) => return Err(Invalid::new("subject", "is missing; give it, or `facts` to build it from")),
        };
        Ok(Ask { policy: self.policy.into(), who, cost: self.cost.unwrap_or_default().cost()? })
    }
}

impl From<FactsBody> for Facts {
    fn from(body: FactsBody) -> Self {
        let FactsBody { ip, user_agent, user, method, path, headers } = body;
        Self { ip, user_agent, user, claims: Vec::new(), method, path, headers: headers.0 }
    }
}

/// A whole number from 0 up, refused in our own words when it is anything else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Amount(pub(super) u64);

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Whole;
        impl Visitor<'_> for Whole {
            type Value = Amount;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number from 0 up")
            }

            fn visit_u64<E>(self, value: u64) -> Result<Amount, E> {
                Ok(Amount(value))
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Amount, E> {
                u64::try_from(value).map(Amount).map_err(|_| E::custom(format!("must be 0 or more; it is {value}")))
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Amount, E> {
                let number = whole(value).map(Amount);
                number.ok_or_else(|| E::custom(format!("must be a whole number from 0 up; it is {value:?}")))
            }

            fn visit_str<E: de::Error>(self, _: &str) -> Result<Amount, E> {
                Err(E::custom("must be a number, not text"))
            }
        }
        deserializer.deserialize_any(Whole)
    }
}

/// The number that was written as `1.0` or `1e3`: JSON knows no other kind of number than these. What is so large that
/// neighbours look alike is none.
pub(crate) fn whole(value: f64) -> Option<u64> {
    const EXACT: f64 = (1u64 << 53) as f64;
    (value.fract() == 0.0 && (0.0..EXACT).contains(&value)).then_some(value as u64)
}

impl JsonSchema for Amount {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Amount".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "integer", "minimum": 0 })
    }
}

/// Amounts by name: units of a cost, or rules of an override.
#[derive(Debug, Default)]
pub(super) struct CostBody(Vec<(String, Amount)>);

impl CostBody {
    pub(super) fn cost(&self) -> Result<Cost, Invalid> {
        self.0.iter().try_fold(Cost::default(), |cost, (unit, amount)| cost.and(unit, amount.0))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn by_name(&self) -> BTreeMap<String, u64> {
        self.0.iter().map(|(name, amount)| (name.clone(), amount.0)).collect()
    }
}

impl<'de> Deserialize<'de> for CostBody {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(UniqueKeys { form: str::to_owned, value: PhantomData }).map(Self)
    }
}

impl JsonSchema for CostBody {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Amounts".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object",
            "description": "Amounts by unit. Units left out: one request, none of any other.",
            "propertyNames": { "pattern": "^[A-Za-z0-9_.-]{1,64}$" },
            "additionalProperties": { "type": "integer", "minimum": 0, "maximum": MAX_AMOUNT },
            "maxProperties": MAX_ENTRIES,
        })
    }
}

/// Names in lower case, as HTTP compares them.
#[derive(Debug, Default)]
struct Headers(Vec<(String, String)>);

impl<'de> Deserialize<'de> for Headers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(UniqueKeys { form: str::to_ascii_lowercase, value: PhantomData }).map(Self)
    }
}

impl JsonSchema for Headers {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Headers".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object",
            "description": "Header fields by name. Upper and lower case are the same, and no name stands twice.",
            "additionalProperties": { "type": "string" },
            "maxProperties": MAX_ENTRIES,
        })
    }
}

/// Reads a small mapping and refuses a key that stands twice, once keys are brought to one `form`.
struct UniqueKeys<V> {
    form: fn(&str) -> String,
    value: PhantomData<V>,
}

impl<'de, V: Deserialize<'de>> Visitor<'de> for UniqueKeys<V> {
    type Value = Vec<(String, V)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut entries: Self::Value = Vec::new();
        while let Some(key) = map.next_key_seed(NewKey { form: self.form, entries: &entries })? {
            if entries.len() == MAX_ENTRIES {
                return Err(de::Error::custom(format!("holds more than {MAX_ENTRIES} entries")));
            }
            entries.push((key, map.next_value()?));
        }
        Ok(entries)
    }
}

struct NewKey<'s, V> {
    form: fn(&str) -> String,
    entries: &'s [(String, V)],
}

impl<'de, V> DeserializeSeed<'de> for NewKey<'_, V> {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        let key = (self.form)(&String::deserialize(deserializer)?);
        if self.entries.iter().any(|(known, _)| *known == key) {
            return Err(de::Error::custom("is given twice"));
        }
        Ok(key)
    }
}
