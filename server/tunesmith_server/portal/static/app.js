// Modules of every page. Each is loaded for itself, so that one that fails does not stop the others.
for (const name of ["times", "shortcuts", "copy", "lists", "errors", "palette"]) import(`./${name}.js`);
