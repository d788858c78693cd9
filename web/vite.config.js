import { createHash } from 'node:crypto';
import { defineConfig } from 'vite';

const sha256 = (text) => `'sha256-${createHash('sha256').update(text, 'utf8').digest('base64')}'`;

// One file with one script and one style, which its own policy names by their hashes: whatever else
// gets into the page does not run, and nothing can be sent elsewhere.
function singleFile() {
  return {
    name: 'single-file',
    enforce: 'post',
    generateBundle(_, bundle) {
      const page = bundle['index.html'];
      const files = Object.values(bundle).filter((file) => file !== page);
      const script = files
        .filter((file) => file.type === 'chunk')
        .map((file) => file.code.replaceAll('</script', '<\\/script').trim())
        .join('\n');
      const style = files
        .filter((file) => file.type === 'asset' && file.fileName.endsWith('.css'))
        .map((file) => String(file.source).trim())
        .join('\n');
      const policy = [
        "default-src 'none'",
        `script-src ${sha256(script)}`,
        `style-src ${sha256(style)}`,
        'img-src data: blob:',
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
      ].join('; ');
      page.source = String(page.source)
        .replace(/\s*<script[^>]*><\/script>/g, '')
        .replace(/\s*<link[^>]*(stylesheet|modulepreload)[^>]*>/g, '')
        .replace(
          '<meta charset="utf-8" />',
          () =>
            '<meta charset="utf-8" />\n<meta http-equiv="Content-Security-Policy" ' +
            `content="${policy}" />`,
        )
        .replace('</head>', () => `<style>${style}</style>\n</head>`)
        .replace('</body>', () => `<script type="module">${script}</script>\n</body>`);
      for (const file of files) delete bundle[file.fileName];
    },
  };
}

export default defineConfig({
  oxc: { jsx: { runtime: 'automatic', importSource: 'preact' } },
  build: {
    modulePreload: false,
    cssCodeSplit: false,
    assetsInlineLimit: 1 << 20,
    target: 'es2022',
  },
  plugins: [singleFile()],
  server: { proxy: { '/api': 'http://127.0.0.1:7860' } },
  test: { include: ['test/**/*.test.ts'] },
});
