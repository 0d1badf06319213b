// Rows that are picked for a comparison: 2 to 8 enable the button of their form.

const LEAST = 2;
const MOST = 8;

function count() {
  const button = document.querySelector("[data-compare]");
  if (!button) return;
  const picked = document.querySelectorAll("#rows input[type=checkbox]:checked").length;
  button.disabled = picked < LEAST || picked > MOST;
  button.textContent = picked > MOST ? `At most ${MOST}` : picked >= LEAST ? `Compare ${picked}` : "Compare";
}

document.addEventListener("change", count);
document.addEventListener("htmx:after:swap", count);
count();
