//! What a server costs that decides nothing: the same messages, parsed and answered.

use std::net::Ipv4Addr;

use axum::Json;
use axum::routing::{get, post};
use axum::serve::ListenerExt as _;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tonic::{Request, Response, Status};

#[derive(Deserialize)]
struct Check {
    policy: String,
    subject: String,
}

#[derive(Serialize)]
struct Answer {
    allowed: bool,
    policy: String,
    subject: String,
    binding: &'static str,
    rules: Vec<Rule>,
}

#[derive(Serialize)]
struct Rule {
    name: &'static str,
    algorithm: &'static str,
    unit: &'static str,
    limit: u64,
    used: u64,
    held: u64,
    remaining: u64,
    reset_at: u64,
    retry_after_ms: Option<u64>,
}

async fn check(Json(check): Json<Check>) -> Json<Answer> {
    let rule = Rule {
        name: "minute",
        algorithm: "gcra",
        unit: "requests",
        limit: 1_000_000,
        used: 1,
        held: 0,
        remaining: 999_999,
        reset_at: 1_800_000_000_000,
        retry_after_ms: None,
    };
    Json(Answer { allowed: true, policy: check.policy, subject: check.subject, binding: "minute", rules: vec![rule] })
}

#[derive(Default)]
struct Limits;

#[tonic::async_trait]
impl RateLimitService for Limits {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let descriptors = request.into_inner().descriptors;
        let status = |_| DescriptorStatus { code: Code::Ok.into(), limit_remaining: 1, ..DescriptorStatus::default() };
        Ok(Response::new(RateLimitResponse {
            overall_code: Code::Ok.into(),
            statuses: descriptors.iter().map(status).collect(),
            ..RateLimitResponse::default()
        }))
    }
}

#[tokio::main(worker_threads = 2)]
pub(crate) async fn serve(what: &str, port: u16) -> anyhow::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    if what == "tonic" {
        let incoming = tonic::transport::server::TcpIncoming::from(listener).with_nodelay(Some(true));
        let service = RateLimitServiceServer::new(Limits);
        tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming).await?;
    } else {
        let app = axum::Router::new().route("/v1/check", post(check)).route("/", get(async || "{\"message\":\"ok\"}"));
        axum::serve(listener.tap_io(|stream| drop(stream.set_nodelay(true))), app).await?;
    }
    Ok(())
}
