// Decompresses the files of @sparticuz/chromium: node unpack.mjs FROM TO.
// Python has no brotli decoder. tests/browser/install.py unpacks the archives.
import { createReadStream, createWriteStream } from "node:fs";
import { join } from "node:path";
import { pipeline } from "node:stream/promises";
import { createBrotliDecompress } from "node:zlib";

const [from, to] = process.argv.slice(2);
for (const name of ["chromium", "al2023.tar", "fonts.tar"]) {
  await pipeline(
    createReadStream(join(from, `${name}.br`)),
    createBrotliDecompress(),
    createWriteStream(join(to, name)),
  );
}
