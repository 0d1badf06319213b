// The office screen: a clock, and the dark theme from 19:00 to 7:00, unless the reader's own colours
// are forced.

const EVENING = 19;
const MORNING = 7;
const clock = document.querySelector("#clock");
const ownColours = matchMedia("(forced-colors: active)");
const chosen = document.documentElement.dataset.theme;

function tick() {
  const now = new Date();
  clock.textContent = `${now.getHours()}:${String(now.getMinutes()).padStart(2, "0")}`;
  const isNight = now.getHours() >= EVENING || now.getHours() < MORNING;
  document.documentElement.dataset.theme = isNight && !ownColours.matches ? "dark" : chosen;
}

tick();
setInterval(tick, 10000);
