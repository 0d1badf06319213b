// Copies the text of `data-copy`, and says so.

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
    button.dataset.done = "true";
    setTimeout(() => delete button.dataset.done, 1500);
  } catch {
    button.dataset.failed = "true"; // no right to the clipboard: the text can be selected
  }
});
