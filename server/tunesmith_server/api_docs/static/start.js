// Shows the API's OpenAPI document; see ../__init__.py.
const place = document.getElementById("documentation");
window.SwaggerUIBundle({
  url: place.dataset.document,
  domNode: place,
  deepLinking: true,
  docExpansion: "none",
  filter: true,
  validatorUrl: null,
});
