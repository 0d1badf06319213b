// Ctrl K: a dialog that finds jobs, models, files, actions.

const dialog = document.querySelector("#palette");
const input = dialog?.querySelector("input");

document.addEventListener("keydown", (event) => {
  if (!dialog || event.key !== "k" || !(event.ctrlKey || event.metaKey)) return;
  event.preventDefault();
  if (dialog.open) dialog.close();
  else {
    dialog.showModal();
    input.select();
    input.dispatchEvent(new Event("input", { bubbles: true }));
  }
});

dialog?.addEventListener("keydown", (event) => {
  const links = [...dialog.querySelectorAll("a")];
  const at = links.indexOf(document.activeElement);
  if (event.key === "ArrowDown") links[Math.min(links.length - 1, at + 1)]?.focus();
  else if (event.key === "ArrowUp") (at > 0 ? links[at - 1] : input).focus();
  else if (event.key === "Enter" && at < 0) links[0]?.click();
  else return;
  event.preventDefault();
});
