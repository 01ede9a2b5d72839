//! What callers may ask, as they write it.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::net::IpAddr;

use sekisho::gate::{Ask, Who};
use sekisho::identity::Facts;
use sekisho::limits::Cost;
use sekisho::{Error, Invalid};
use serde::Deserialize;
use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, Visitor};

/// More units or headers than this are no request; and looking for twins takes the square of it.
const MAX_ENTRIES: usize = 256;

/// One charge, or several in `charges`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CheckBody {
    policy: Option<String>,
    subject: Option<String>,
    endpoint: Option<String>,
    facts: Option<FactsBody>,
    cost: Option<CostBody>,
    charges: Option<Vec<ChargeBody>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BatchBody {
    pub(super) checks: Vec<CheckBody>,
}

/// A check, and how long to hold it. Written out because serde cannot both flatten and refuse unknown fields.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReserveBody {
    policy: Option<String>,
    subject: Option<String>,
    endpoint: Option<String>,
    facts: Option<FactsBody>,
    cost: Option<CostBody>,
    charges: Option<Vec<ChargeBody>>,
    pub(super) lease_ms: Option<Amount>,
    pub(super) idempotency_key: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ChargeBody {
    policy: String,
    subject: Option<String>,
    endpoint: Option<String>,
    facts: Option<FactsBody>,
    cost: Option<CostBody>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FactsBody {
    ip: Option<IpAddr>,
    user_agent: Option<String>,
    user: Option<String>,
    method: Option<String>,
    path: Option<String>,
    #[serde(default)]
    headers: Headers,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SettleBody {
    pub(super) reservation: String,
    #[serde(default)]
    pub(super) cost: CostBody,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReleaseBody {
    pub(super) reservation: String,
}

/// Whose counters an operator means.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TargetBody {
    pub(super) policy: String,
    pub(super) subject: String,
    pub(super) endpoint: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GrantBody {
    pub(super) policy: String,
    pub(super) subject: String,
    pub(super) endpoint: Option<String>,
    pub(super) cost: CostBody,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OverrideBody {
    pub(super) policy: String,
    pub(super) subject: String,
    pub(super) endpoint: Option<String>,
    pub(super) limits: CostBody,
    pub(super) until: Amount,
}

/// The charges of a request, and whether it listed them.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) asks: Vec<Ask>,
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
            return Ok(Asked { asks: vec![charge.ask()?], listed: false });
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
        let asks = charges.into_iter().enumerate().map(|(i, charge)| charge.ask().map_err(|e| place(i, e)));
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
    fn ask(self) -> Result<Ask, Invalid> {
        let who = match (self.subject, self.facts) {
            (Some(subject), None) => Who::Subject { subject, endpoint: self.endpoint },
            (None, Some(_)) if self.endpoint.is_some() => {
                return Err(Invalid::new("endpoint", "is taken from `facts.path` where there are `facts`"));
            }
            (None, Some(facts)) => Who::Facts(facts.into()),
            (Some(_), Some(_)) => return Err(Invalid::new("facts", "cannot stand beside `subject`; give one of them")),
            (None, None) => return Err(Invalid::new("subject", "is missing; give it, or `facts` to build it from")),
        };
        Ok(Ask { policy: self.policy, who, cost: self.cost.unwrap_or_default().cost()? })
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
                Err(E::custom(format!("must be a whole number; it is {value:?}")))
            }

            fn visit_str<E: de::Error>(self, _: &str) -> Result<Amount, E> {
                Err(E::custom("must be a number, not text"))
            }
        }
        deserializer.deserialize_any(Whole)
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

/// Names in lower case, as HTTP compares them.
#[derive(Debug, Default)]
struct Headers(Vec<(String, String)>);

impl<'de> Deserialize<'de> for Headers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(UniqueKeys { form: str::to_ascii_lowercase, value: PhantomData }).map(Self)
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
