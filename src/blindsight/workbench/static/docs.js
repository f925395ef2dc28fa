// Swagger UI from an installed package. It supports OpenAPI 3.0, and shows our 3.1 schema if that states 3.0.
const schema = await (await fetch("/api/openapi.json")).json();
schema.openapi = "3.0.3";
window.SwaggerUIBundle({ spec: schema, domNode: document.getElementById("swagger"), validatorUrl: null });
