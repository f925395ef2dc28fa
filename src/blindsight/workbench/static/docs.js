// Swagger UI from an installed package. It knows OpenAPI 3.0, whose pages read 3.1 well enough once told so.
const schema = await (await fetch("/api/openapi.json")).json();
schema.openapi = "3.0.3";
window.SwaggerUIBundle({ spec: schema, domNode: document.getElementById("swagger"), validatorUrl: null });
