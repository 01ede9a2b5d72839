//! One operation as the document describes it: what it takes, and every answer that can come.

use std::borrow::Cow;

use axum::http::StatusCode;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

use super::Schemas;
use super::problems;

type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

#[derive(Debug)]
pub(crate) struct Operation {
    id: &'static str,
    summary: &'static str,
    tag: &'static str,
    /// The scheme that the token comes in.
    token: &'static str,
    path: Option<SchemaOf>,
    query: Option<SchemaOf>,
    headers: Vec<(&'static str, &'static str)>,
    /// Parts of the path that no type describes.
    parts: Vec<(&'static str, Value)>,
    /// Media type, schema, example.
    body: Option<(&'static str, SchemaOf, Value)>,
    may_lack_body: bool,
    /// Wants the token also where none is set.
    is_closed: bool,
    answers: Vec<Answer>,
    problems: Vec<StatusCode>,
}

/// An answer that is no problem.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    status: StatusCode,
    description: &'static str,
    /// Media type, schema, and what is said beyond the schema.
    content: Option<(&'static str, SchemaOf, Value)>,
    may_be_bytes: bool,
    headers: Value,
    links: Value,
}

impl Operation {
    pub(crate) fn new(tag: &'static str, id: &'static str, summary: &'static str) -> Self {
        Self {
            id,
            summary,
            tag,
            token: super::BEARER,
            path: None,
            query: None,
            headers: Vec::new(),
            parts: Vec::new(),
            body: None,
            may_lack_body: false,
            is_closed: false,
            answers: Vec::new(),
            // Every route wants the token, and every request has a deadline.
            problems: vec![StatusCode::UNAUTHORIZED, StatusCode::REQUEST_TIMEOUT],
        }
    }

    pub(crate) fn with_token_in(mut self, scheme: &'static str) -> Self {
        self.token = scheme;
        self
    }

    /// Takes a JSON body.
    pub(crate) fn asks<T: JsonSchema>(mut self, example: Value) -> Self {
        self.body = Some(("application/json", schema_of::<T>, example));
        self.fails(&[StatusCode::BAD_REQUEST, StatusCode::PAYLOAD_TOO_LARGE, StatusCode::UNSUPPORTED_MEDIA_TYPE])
    }

    /// Takes a JSON body, or none.
    pub(crate) fn may_ask<T: JsonSchema>(mut self, example: Value) -> Self {
        self.may_lack_body = true;
        self.asks::<T>(example)
    }

    /// Takes a form.
    pub(crate) fn asks_form<T: JsonSchema>(mut self, example: Value) -> Self {
        self.body = Some(("application/x-www-form-urlencoded", schema_of::<T>, example));
        self.fails(&[StatusCode::PAYLOAD_TOO_LARGE, StatusCode::UNSUPPORTED_MEDIA_TYPE])
    }

    /// Takes any bytes, whatever they are called.
    pub(crate) fn asks_bytes(mut self) -> Self {
        self.body = Some(("application/octet-stream", schema_of::<Bytes>, json!("any bytes")));
        self.fails(&[StatusCode::BAD_REQUEST, StatusCode::PAYLOAD_TOO_LARGE, StatusCode::UNSUPPORTED_MEDIA_TYPE])
    }

    pub(crate) fn always_closed(mut self) -> Self {
        self.is_closed = true;
        self
    }

    /// Has the fields of `T` in its path.
    pub(crate) fn at<T: JsonSchema>(mut self) -> Self {
        self.path = Some(T::json_schema);
        self.fails(&[StatusCode::BAD_REQUEST])
    }

    /// Takes the fields of `T` as a query.
    pub(crate) fn queries<T: JsonSchema>(mut self) -> Self {
        self.query = Some(T::json_schema);
        self.fails(&[StatusCode::BAD_REQUEST])
    }

    pub(crate) fn reads_header(mut self, name: &'static str, description: &'static str) -> Self {
        self.headers.push((name, description));
        self
    }

    /// Takes a part of the path.
    pub(crate) fn in_path(mut self, name: &'static str, schema: Value) -> Self {
        self.parts.push((name, schema));
        self
    }

    pub(crate) fn answers(mut self, answer: Answer) -> Self {
        self.answers.push(answer);
        self
    }

    pub(crate) fn fails(mut self, problems: &[StatusCode]) -> Self {
        self.problems.extend(problems);
        self
    }

    /// Asks the store, which may not answer.
    pub(crate) fn asks_the_store(self) -> Self {
        self.fails(&[StatusCode::INTERNAL_SERVER_ERROR, StatusCode::SERVICE_UNAVAILABLE])
    }

    /// `method` is named in the id where there are several.
    pub(super) fn describe(&self, method: &str, is_only: bool, is_closed: bool, schemas: &mut Schemas) -> Value {
        let id = if is_only { self.id.to_owned() } else { format!("{}_{method}", self.id) };
        let mut responses = Map::new();
        for status in &self.problems {
            let name = problems::name(*status);
            responses.insert(status.as_str().to_owned(), json!({ "$ref": format!("#/components/responses/{name}") }));
        }
        // What an operation says itself counts.
        for answer in &self.answers {
            responses.insert(answer.status.as_str().to_owned(), answer.describe(schemas));
        }
        let token = json!({ self.token: [] });
        let mut operation = json!({
            "operationId": id,
            "summary": self.summary,
            "tags": [self.tag],
            "security": if is_closed || self.is_closed { json!([token]) } else { json!([{}, token]) },
            "responses": responses,
        });
        let parameters = self.parameters(schemas);
        if !parameters.is_empty() {
            operation["parameters"] = parameters.into();
        }
        if let Some((media, schema, example)) = &self.body {
            let content = json!({ "schema": schema(&mut schemas.requests), "example": example });
            operation["requestBody"] = json!({ "required": !self.may_lack_body, "content": { *media: content } });
        }
        operation
    }

    fn parameters(&self, schemas: &mut Schemas) -> Vec<Value> {
        let header = |(name, description): &(&str, &str)| json!({ "in": "header", "name": name, "description": description, "schema": { "type": "string" } });
        let mut parameters: Vec<Value> = self.headers.iter().map(header).collect();
        let part =
            |(name, schema): &(&str, Value)| json!({ "in": "path", "name": name, "required": true, "schema": schema });
        parameters.extend(self.parts.iter().map(part));
        for (place, fields) in [("path", self.path), ("query", self.query)] {
            let Some(fields) = fields else { continue };
            let fields = fields(&mut schemas.requests).to_value();
            for (name, schema) in fields["properties"].as_object().into_iter().flatten() {
                let is_required = fields["required"].as_array().is_some_and(|required| required.contains(&json!(name)));
                let mut schema = schema.clone();
                let description = schema.as_object_mut().and_then(|schema| schema.remove("description"));
                // A query has no null; it leaves out.
                schema["type"] = json!("string");
                parameters.push(json!({
                    "in": place, "name": name, "required": is_required, "description": description, "schema": schema,
                }));
            }
        }
        parameters
    }
}

impl Answer {
    pub(crate) fn new(status: StatusCode, description: &'static str) -> Self {
        Self { status, description, ..Self::default() }
    }

    pub(crate) fn json<T: JsonSchema>(self) -> Self {
        self.json_with::<T>(json!({}))
    }

    /// Says more of the body than its type does.
    pub(crate) fn json_with<T: JsonSchema>(mut self, more: Value) -> Self {
        self.content = Some(("application/json", schema_of::<T>, more));
        self
    }

    pub(crate) fn problem(mut self) -> Self {
        self.content = Some(("application/problem+json", schema_of::<crate::respond::Problem>, json!({})));
        self
    }

    pub(crate) fn text(mut self) -> Self {
        self.content = Some(("text/plain", schema_of::<String>, json!({})));
        self
    }

    /// As it is configured what its media type is called.
    pub(crate) fn bytes(mut self) -> Self {
        self.content = Some(("*/*", schema_of::<Bytes>, json!({})));
        self
    }

    /// Also as bytes, for whoever asks for them.
    pub(crate) fn or_bytes(mut self) -> Self {
        self.may_be_bytes = true;
        self
    }

    pub(crate) fn header(mut self, name: &str, header: Value) -> Self {
        self.headers[name] = header;
        self
    }

    /// Where a member of this answer goes next: into the field of that name of another operation's body.
    pub(crate) fn leads_to(mut self, operation: &str, field: &str) -> Self {
        let value = format!("$response.body#/{field}");
        self.links[operation] = json!({ "operationId": operation, "requestBody": { field: value } });
        self
    }

    pub(super) fn describe(&self, schemas: &mut Schemas) -> Value {
        let mut response = json!({ "description": self.description });
        if let Some((media, schema, more)) = &self.content {
            let mut schema = schema(&mut schemas.answers).to_value();
            schema
                .as_object_mut()
                .into_iter()
                .for_each(|schema| schema.extend(more.as_object().cloned().unwrap_or_default()));
            response["content"] = json!({ *media: { "schema": schema } });
        }
        if self.may_be_bytes {
            let schema = schema_of::<Bytes>(&mut schemas.answers);
            response["content"]["application/octet-stream"] = json!({ "schema": schema });
        }
        for (name, value) in [("headers", &self.headers), ("links", &self.links)] {
            if !value.is_null() {
                response[name] = value.clone();
            }
        }
        response
    }
}

/// Any bytes.
struct Bytes;

impl JsonSchema for Bytes {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Bytes".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "binary" })
    }
}

/// A reference to a type that has a name, and the schema itself of one that has none.
fn schema_of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}
