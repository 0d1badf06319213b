// Keeps relative times current.

/** @param {number} moment Unix seconds */
export function ago(moment) {
  const seconds = Date.now() / 1000 - moment;
  if (seconds < 10) return "just now";
  if (seconds < 60) return `${Math.floor(seconds)} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86400)} d ago`;
}

setInterval(() => {
  for (const time of document.querySelectorAll("time[datetime]:not([data-future])")) {
    const shown = ago(Number(time.getAttribute("datetime")));
    if (time.textContent !== shown) time.textContent = shown;
  }
}, 20000);
