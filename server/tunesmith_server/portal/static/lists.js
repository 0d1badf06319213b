// Rows that are picked for a comparison: 2 to 8 enable the button of their form. Picks stay in the address,
// and so in filters, further pages and reloads. A job that succeeded has a new model.

const LEAST = 2;
const MOST = 8;

function count(event) {
  const button = document.querySelector("[data-compare]");
  if (!button) return;
  const picked = [...document.querySelectorAll("#jobs input[name=jobs]:checked")].map((box) => box.value);
  button.disabled = picked.length < LEAST || picked.length > MOST;
  button.textContent = picked.length > MOST ? `At most ${MOST}` : picked.length >= LEAST ? `Compare ${picked.length}` : "Compare";
  if (!event?.target.matches?.("#jobs input")) return;
  const keep = (address) => {
    const url = new URL(address, location.href);
    url.searchParams.set("pick", picked.join());
    if (!picked.length) url.searchParams.delete("pick");
    return url.pathname + url.search.replaceAll("%2C", ",");
  };
  history.replaceState(history.state, "", keep(location.href));
  document.querySelector("input[name=pick]").value = picked.join();
  for (const link of document.querySelectorAll("[data-picks]")) link.href = keep(link.href);
}

document.addEventListener("change", count);
document.addEventListener("htmx:after:swap", count);
count();
document.addEventListener("ts:live", ({ detail }) => {
  if (detail.kind === "row" && detail.data.state === "succeeded") document.querySelector("#models")?.dispatchEvent(new Event("ts:new-model"));
});
