//! `sekisho elevation LAT LON`, `sekisho elevation profile FILE.gpx`

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use sekisho_elevation::answers::ProfileAnswer;
use sekisho_elevation::{Height, Line, Point, Profile, Settings};
use serde_json::{Value, json};

use crate::client::Client;
use crate::exit::{Failure, Outcome};
use crate::{ServerArgs, output};

/// Samples that are asked for at a time, so that there is progress to be shown: two and a half kilometres.
const PART: usize = 256;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct ElevationArgs {
    #[command(subcommand)]
    command: Option<ElevationCommand>,
    /// Degrees north
    #[arg(required = true, allow_negative_numbers = true)]
    lat: Option<f64>,
    /// Degrees east
    #[arg(required = true, allow_negative_numbers = true)]
    lon: Option<f64>,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, Subcommand)]
enum ElevationCommand {
    /// The heights along the way in a GPX file, and what it climbs
    Profile(ProfileArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ProfileArgs {
    /// A track or a route
    file: PathBuf,
    /// Draw the profile into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Metres between samples
    #[arg(long, value_name = "METRES")]
    spacing: Option<f64>,
    #[command(flatten)]
    server: ServerArgs,
}

pub(crate) fn run(args: &ElevationArgs) -> Result<Outcome, Failure> {
    match (&args.command, args.lat, args.lon) {
        (Some(ElevationCommand::Profile(profile)), ..) => self::profile(profile),
        (None, Some(lat), Some(lon)) => height(lat, lon, &args.server),
        _ => Err(Failure::Input("give a latitude and a longitude".to_owned())),
    }
}

fn height(lat: f64, lon: f64, server: &ServerArgs) -> Result<Outcome, Failure> {
    let query = [("lat", lat.to_string()), ("lon", lon.to_string())];
    let query = query.each_ref().map(|(name, value)| (*name, value.as_str()));
    let answer = Client::patient(server).get("/v1/elevation", &query)?;
    if server.json {
        output::json(&answer.body);
        return Ok(Outcome::Done);
    }
    output::line(&match (answer.body["elevation"].as_f64(), answer.body["source"].as_str()) {
        (Some(metres), Some(source)) => format!("{metres} m ({source})"),
        _ => "no height is known there".to_owned(),
    });
    Ok(Outcome::Done)
}

fn profile(args: &ProfileArgs) -> Result<Outcome, Failure> {
    let name = args.file.display();
    let bytes = std::fs::read(&args.file).map_err(|error| Failure::Input(format!("{name}: {error}")))?;
    let line = Line::from_gpx(&bytes).map_err(|error| Failure::Input(format!("{name}: {error}")))?;
    let mut settings = Settings::default();
    if let Some(metres) = args.spacing {
        settings = settings.with_spacing(metres).map_err(|bad| Failure::Input(bad.to_string()))?;
    }
    let samples = settings.samples(&line);
    let points: Vec<Point> = samples.samples.iter().map(|sample| sample.point).collect();
    let heights = ask(&Client::patient(&args.server), &points)?;
    let profile = Profile::new(samples, &heights, settings);
    if let Some(file) = &args.svg {
        let title = line.name().map_or_else(|| stem(&args.file), str::to_owned);
        let written = std::fs::write(file, profile.to_svg(&title));
        written.map_err(|error| Failure::Input(format!("{}: {error}", file.display())))?;
    }
    if args.server.json {
        output::json(&json!(ProfileAnswer::from(&profile)));
    } else {
        show(&profile);
    }
    Ok(Outcome::Done)
}

/// In parts, behind a bar that is only there on a terminal.
fn ask(client: &Client, points: &[Point]) -> Result<Vec<Option<Height>>, Failure> {
    let bar = ProgressBar::new(points.len() as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:32} {percent:>3} % {eta}") {
        bar.set_style(style);
    }
    let mut heights = Vec::with_capacity(points.len());
    for part in points.chunks(PART) {
        let locations: Vec<Value> = part.iter().map(|at| json!({ "lat": at.lat(), "lon": at.lon() })).collect();
        let answer = client.post("/v1/elevation/profile", &json!({ "points": locations, "as_given": true }))?;
        let told = answer.body["points"].as_array().map(Vec::as_slice).unwrap_or_default();
        if told.len() != part.len() {
            return Err(Failure::Server(format!("{} heights were told for {} points", told.len(), part.len())));
        }
        heights.extend(told.iter().map(height_of));
        bar.inc(part.len() as u64);
    }
    bar.finish_and_clear();
    Ok(heights)
}

fn height_of(point: &Value) -> Option<Height> {
    Some(Height { metres: point["elevation"].as_f64()?, layer: point["source"].as_str()?.parse().ok()? })
}

fn stem(file: &Path) -> String {
    file.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default()
}

fn show(profile: &Profile) {
    let metres = |metres: Option<f64>| metres.map_or_else(|| "-".to_owned(), |metres| format!("{metres:.0} m"));
    let climb = |raw: f64, filtered: f64| format!("{filtered:.0} m (raw {raw:.0} m)");
    let (raw, filtered) = (profile.raw, profile.filtered);
    let rows = [
        ("distance", format!("{:.2} km", profile.distance_m / 1_000.0)),
        ("ascent", climb(raw.ascent_m, filtered.ascent_m)),
        ("descent", climb(raw.descent_m, filtered.descent_m)),
        ("highest", metres(profile.highest_m)),
        ("lowest", metres(profile.lowest_m)),
        ("without a height", format!("{} of {} points", profile.missing, profile.points.len())),
    ];
    output::table(&["profile", ""], rows.map(|(name, value)| vec![name.to_owned(), value]));
    output::line(&format!("{} ({})", sekisho_elevation::ATTRIBUTION, sekisho_elevation::ATTRIBUTION_URL));
}
