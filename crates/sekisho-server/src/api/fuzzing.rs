//! Bodies of the API, for the fuzz targets.

use super::body::{Body, Form};
use super::oauth;
use super::request::{BatchBody, CheckBody, ReleaseBody, ReserveBody, SettleBody};
use sekisho::limits::ReservationId;

/// What a body asks for, in words, or what is wrong with it.
pub(crate) fn body(path: &str, bytes: &[u8]) -> Result<String, String> {
    fn read<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
        Body::<T>::parse(bytes).map_err(|problem| problem.detail().to_owned())
    }
    let id = |text: &str| text.parse::<ReservationId>().map_err(|invalid| invalid.to_string());
    match path {
        "reserve" => {
            let body: ReserveBody = read(bytes)?;
            let lease = body.lease_ms.is_some();
            let asked = body.asked().map_err(|invalid| invalid.to_string())?;
            Ok(format!("{} {lease}", asked.asks.len()))
        }
        "settle" => {
            let body: SettleBody = read(bytes)?;
            body.cost.cost().map_err(|invalid| invalid.to_string())?;
            id(&body.reservation).map(|_| "settled".to_owned())
        }
        "release" => id(&read::<ReleaseBody>(bytes)?.reservation).map(|_| "released".to_owned()),
        "batch" => Ok(read::<BatchBody>(bytes)?.checks.len().to_string()),
        _ => {
            let asked = read::<CheckBody>(bytes)?.asked().map_err(|invalid| invalid.to_string())?;
            Ok(format!("{} {}", asked.asks.len(), asked.listed))
        }
    }
}

/// The token of a form and the kind it is said to be, or why there is none.
pub(crate) fn token_form(bytes: &[u8]) -> Result<(String, bool), String> {
    let form = Form::parse(bytes);
    let asked = oauth::asked(&form).map_err(|error| format!("{error:?}"))?;
    Ok((asked.0.to_owned(), asked.1.is_some()))
}
