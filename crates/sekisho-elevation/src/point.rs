//! A place on the earth.

/// The mean radius that haversine distances are usually given for.
const EARTH_RADIUS_M: f64 = 6_371_008.8;

/// A latitude and a longitude in degrees that exist: finite, within ±90 and ±180.
///
/// GPS and GSI differ in their datum by less than a pixel, so one point serves both.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    lat: f64,
    lon: f64,
}

/// A coordinate that no place has.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{field} is {value}, which is not a number from -{limit} to {limit}")]
pub struct BadPoint {
    pub field: &'static str,
    pub value: f64,
    pub limit: f64,
}

impl Point {
    pub fn new(lat: f64, lon: f64) -> Result<Self, BadPoint> {
        // Written so that NaN fails.
        let within = |field, value: f64, limit: f64| match value.abs() <= limit {
            true => Ok(value),
            false => Err(BadPoint { field, value, limit }),
        };
        Ok(Self { lat: within("latitude", lat, 90.0)?, lon: within("longitude", lon, 180.0)? })
    }

    pub fn lat(self) -> f64 {
        self.lat
    }

    pub fn lon(self) -> f64 {
        self.lon
    }

    /// Metres along the surface, by haversine: at most 0.5 % from the ellipsoid's.
    pub fn distance_m(self, other: Self) -> f64 {
        let (lat1, lat2) = (self.lat.to_radians(), other.lat.to_radians());
        let half_lat = ((lat2 - lat1) / 2.0).sin();
        let half_lon = ((other.lon - self.lon).to_radians() / 2.0).sin();
        let a = half_lat * half_lat + lat1.cos() * lat2.cos() * half_lon * half_lon;
        2.0 * EARTH_RADIUS_M * a.sqrt().min(1.0).asin()
    }

    /// The point at a fraction of the way, straight in degrees as maps draw it, and the short way around the earth.
    pub(crate) fn towards(self, other: Self, fraction: f64) -> Self {
        let mut east = other.lon - self.lon;
        if east.abs() > 180.0 {
            east -= 360.0_f64.copysign(east);
        }
        let mut lon = self.lon + east * fraction;
        if lon.abs() > 180.0 {
            lon -= 360.0_f64.copysign(lon);
        }
        Self { lat: self.lat + (other.lat - self.lat) * fraction, lon }
    }

    /// Only for what is a place by construction, but for the rounding of its last bit.
    pub(crate) fn clamped(lat: f64, lon: f64) -> Self {
        Self { lat: lat.clamp(-90.0, 90.0), lon: lon.clamp(-180.0, 180.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(lat: f64, lon: f64) -> Point {
        Point::new(lat, lon).unwrap()
    }

    #[test]
    fn what_is_no_place_does_not_build() {
        for (lat, lon) in [(f64::NAN, 0.0), (0.0, f64::NAN), (90.1, 0.0), (0.0, -180.5), (f64::INFINITY, 0.0)] {
            assert!(Point::new(lat, lon).is_err(), "{lat} {lon}");
        }
        assert!(Point::new(-90.0, 180.0).is_ok());
        let error = Point::new(91.0, 0.0).unwrap_err();
        assert_eq!(error.to_string(), "latitude is 91, which is not a number from -90 to 90");
    }

    #[test]
    fn distances() {
        assert_eq!(point(35.0, 139.0).distance_m(point(35.0, 139.0)), 0.0);
        let degree = point(35.0, 139.0).distance_m(point(36.0, 139.0));
        assert!((degree - 111_195.08).abs() < 0.01, "{degree}");
        let around = point(0.0, 0.0).distance_m(point(0.0, 180.0));
        assert!((around - std::f64::consts::PI * EARTH_RADIUS_M).abs() < 1e-3, "{around}");
    }

    #[test]
    fn the_short_way_crosses_the_date_line() {
        let middle = point(10.0, 179.0).towards(point(20.0, -179.0), 0.75);
        assert!((middle.lat() - 17.5).abs() < 1e-9 && (middle.lon() + 179.5).abs() < 1e-9, "{middle:?}");
    }
}
