// Modules of every page. Each is loaded for itself, so that one that fails does not stop the others.
const names = ["basics", "shortcuts", "palette"];
if (document.querySelector("[data-compare], #models")) names.push("lists");
if (document.querySelector("[data-watch]")) names.push("live");
if (document.querySelector("#new-job") || location.hash === "#started") names.push("new-job");
if (document.querySelector("[data-upload]")) names.push("upload");
if (document.querySelector("#playground")) names.push("playground");
for (const name of names) import(`./${name}.js`);

// The element that takes the focus, unless somebody types already; `autofocus` would complain then.
if (document.activeElement === document.body) document.querySelector("[data-focus]")?.focus();
