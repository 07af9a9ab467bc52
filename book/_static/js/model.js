// The Transformer of this book once more, in the language of the page. It reads the same
// model.safetensors, its classes and functions have the names of the package, and a test holds its
// logits against the package's. Three things are simpler here:
//
// * One sentence at a time, so there is no batch, no padding and no padding mask.
// * The decoder reads one token at a time, with the cache. What comes later is not there yet, so
//   nothing has to be hidden from it, and there is no causal mask.
// * It translates and never learns: no dropout, no gradients.
//
// A part keeps in `last` what its last call has computed on the way, for whoever wants to look
// inside; `trace` gathers it.
//
// A vector is a Float32Array. A sequence of t vectors of width d, shape (t, d), is an array of
// them. Letters of the shapes: t queries or target tokens, s keys or source tokens, d width of the
// model, h heads, k = d / h width of a head, f inner width of the feed-forward network, v tokens of
// the vocabulary.
"use strict";

{
  const { PAD, BOS, EOS, normalForm, Tokenizer } = literate; // of tokenizer.js
  const { dot, softmax } = literate; // of movable.js: q · k, and exp(zᵢ) / Σⱼ exp(zⱼ)

  // ---------------------------------------------------------------- The file of weights

  /** Return the number that 16 bits stand for: a sign, 5 bits of exponent, 10 of fraction. */
  function halfToNumber(bits) {
    const sign = bits & 0x8000 ? -1 : 1;
    const exponent = (bits >> 10) & 31;
    const fraction = (bits & 1023) / 1024;
    if (exponent === 31) return fraction ? NaN : sign * Infinity;
    return sign * (exponent ? (1 + fraction) * 2 ** (exponent - 15) : fraction * 2 ** -14);
  }

  const HALVES = Float32Array.from({ length: 2 ** 16 }, (_, bits) => halfToNumber(bits));

  const READERS = { // type in the file -> bytes of a number, and how to read one
    F16: [2, (view, at) => HALVES[view.getUint16(at, true)]],
    F32: [4, (view, at) => view.getFloat32(at, true)],
  };

  /**
   * Read a safetensors file: eight bytes that say how long the header is, the header, which is
   * JSON and names type, shape and place of each tensor, and then nothing but numbers.
   * ArrayBuffer -> Map of name -> { shape, data }, the data in a Float32Array.
   */
  function readSafetensors(buffer) {
    const length = Number(new DataView(buffer).getBigUint64(0, true));
    const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
    delete header.__metadata__;
    const tensors = new Map();
    for (const [name, { dtype, shape, data_offsets: [start, end] }] of Object.entries(header)) {
      if (!(dtype in READERS)) throw new Error(`${name} is in ${dtype}; known are F16 and F32`);
      const [size, read] = READERS[dtype];
      const view = new DataView(buffer, 8 + length + start, end - start);
      const data = new Float32Array((end - start) / size);
      for (let i = 0; i < data.length; i++) data[i] = read(view, i * size);
      tensors.set(name, { shape, data });
    }
    return tensors;
  }

  /** Return a tensor by its name, and say so if it is missing. */
  function take(tensors, name) {
    if (!tensors.has(name)) throw new Error(`${name} is missing from the weights`);
    return tensors.get(name);
  }

  // ---------------------------------------------------------------- Vectors

  /** x + y.  (d,), (d,) -> (d,) */
  function add(x, y) {
    return x.map((number, i) => number + y[i]);
  }

  /** y = W x + b, with W of shape (n, m).  (m,) -> (n,) */
  class Linear {
    constructor(tensors, name) {
      this.weight = take(tensors, `${name}.weight`);
      this.bias = take(tensors, `${name}.bias`);
    }

    /** Compute the entries `first` to `last` of y; all of them, if nothing is said. */
    forward(x, first = 0, last = this.weight.shape[0]) {
      const m = this.weight.shape[1];
      const y = new Float32Array(last - first);
      for (let i = first; i < last; i++) {
        y[i - first] = this.bias.data[i] + dot(x, this.weight.data.subarray(i * m, (i + 1) * m));
      }
      return y;
    }
  }

  // ---------------------------------------------------------------- Embedding (chapter 3)

  /** PE(p, 2i) = sin(p / 10000^(2i/d)), PE(p, 2i + 1) = the cosine of the same.  -> (d,) */
  function sinusoidalPosition(position, d) {
    return Float32Array.from({ length: d }, (_, j) => {
      const angle = position / 10000 ** ((j - (j % 2)) / d);
      return j % 2 ? Math.cos(angle) : Math.sin(angle);
    });
  }

  /** √d · E[id] + PE(position).  ids of length t -> (t, d) */
  class Embedding {
    constructor(tensors, name) {
      const { shape: [, d], data } = take(tensors, `${name}.tokens.weight`);
      this.d = d;
      this.vector = (id) => data.subarray(id * d, (id + 1) * d);
    }

    /** The first of the ids stands at position `start`. */
    forward(ids, start = 0) {
      return ids.map((id, i) => add(this.token(id), sinusoidalPosition(start + i, this.d)));
    }

    /** √d · E[id], before its position is added. */
    token(id) {
      return this.vector(id).map((number) => number * Math.sqrt(this.d));
    }
  }

  // ---------------------------------------------------------------- Attention (chapters 2 and 4)

  /**
   * softmax(Q Kᵀ / √k) V, equation 1 of the paper.
   * (t, k), (s, k), (s, k) -> the output (t, k), and on the way scores and weights (t, s)
   */
  function attention(query, key, value) {
    const scale = Math.sqrt(query[0].length);
    const scores = query.map((q) => key.map((k) => dot(q, k) / scale));
    const weights = scores.map((row) => softmax(row));
    const output = weights.map((row) => {
      const sum = new Float32Array(value[0].length);
      row.forEach((weight, j) => {
        for (let i = 0; i < sum.length; i++) sum[i] += weight * value[j][i];
      });
      return sum;
    });
    return { scores, weights, output };
  }

  /** Cut each vector into h pieces, and bring the heads before the positions.  (t, d) -> (h, t, k) */
  function splitHeads(x, nHeads) {
    const k = x[0].length / nHeads;
    return Array.from({ length: nHeads }, (_, h) => x.map((row) => row.subarray(h * k, (h + 1) * k)));
  }

  /** Put the heads side by side again.  (h, t, k) -> (t, d) */
  function mergeHeads(heads) {
    return heads[0].map((_, t) => Float32Array.from(heads.flatMap((head) => [...head[t]])));
  }

  /** The keys and values that an attention has already computed, (h, s, k) each. */
  class KeyValueCache {
    key = [];
    value = [];

    get length() {
      return this.key.length ? this.key[0].length : 0;
    }

    /** Add the keys and values of further positions, (h, t, k) each. */
    append(key, value) {
      const join = (held, heads) => heads.map((head, h) => [...(held[h] ?? []), ...head]);
      this.key = join(this.key, key);
      this.value = join(this.value, value);
    }
  }

  /**
   * head_h = attention(x W_hQ, m W_hK, m W_hV), and out = [head_1 … head_h] W_O (section 3.2.2).
   * `in_proj` holds W_Q, W_K and W_V of all heads, one above the other; `out_proj` is W_O.
   */
  class MultiHeadAttention {
    constructor(tensors, name, nHeads) {
      this.nHeads = nHeads;
      this.inProj = new Linear(tensors, `${name}.in_proj`);
      this.outProj = new Linear(tensors, `${name}.out_proj`);
    }

    /**
     * Let each position of x attend to the memory m, or to x itself.  (t, d), (s, d) -> (t, d)
     * Self-attention appends x to its cache. Cross-attention fills it from the memory once.
     */
    forward(x, memory = null, cache = new KeyValueCache()) {
      const query = this.project(x, 0);
      if (!memory || !cache.length) {
        const source = memory ?? x;
        cache.append(this.project(source, 1), this.project(source, 2));
      }
      const heads = query.map((q, h) => attention(q, cache.key[h], cache.value[h]));
      const joined = mergeHeads(heads.map((head) => head.output));
      this.last = { query, key: cache.key, value: cache.value, heads, joined };
      return joined.map((row) => this.outProj.forward(row));
    }

    /** Multiply by W_Q, W_K or W_V, which are parts 0, 1 and 2 of `in_proj`.  (t, d) -> (h, t, k) */
    project(x, part) {
      const d = x[0].length;
      const projected = x.map((row) => this.inProj.forward(row, part * d, (part + 1) * d));
      return splitHeads(projected, this.nHeads);
    }
  }

  // ---------------------------------------------------------------- Around attention (chapter 5)

  /** FFN(x) = W₂ max(0, W₁ x + b₁) + b₂, equation 2 of the paper.  (t, d) -> (t, f) -> (t, d) */
  class FeedForward {
    constructor(tensors, name) {
      this.linear1 = new Linear(tensors, `${name}.linear1`);
      this.linear2 = new Linear(tensors, `${name}.linear2`);
    }

    forward(x) {
      const wide = x.map((row) => this.linear1.forward(row));
      const inner = wide.map((row) => row.map((number) => Math.max(0, number)));
      this.last = { wide, inner };
      return inner.map((row) => this.linear2.forward(row));
    }
  }

  /** g · (x − mean) / √(variance + 10⁻⁵) + b, entry by entry.  (d,) -> (d,) */
  function layerNorm(x, weight, bias, eps = 1e-5) {
    const mean = x.reduce((a, b) => a + b, 0) / x.length;
    const variance = x.reduce((sum, number) => sum + (number - mean) ** 2, 0) / x.length;
    const scale = 1 / Math.sqrt(variance + eps);
    return x.map((number, i) => (number - mean) * scale * weight[i] + bias[i]);
  }

  /** LayerNorm(x + sublayer(x)), section 3.1: the paper's post-norm.  (t, d) -> (t, d) */
  class Residual {
    constructor(tensors, name) {
      this.weight = take(tensors, `${name}.norm.weight`).data;
      this.bias = take(tensors, `${name}.norm.bias`).data;
    }

    forward(x, sublayer) {
      const y = sublayer(x);
      const sum = x.map((row, i) => add(row, y[i]));
      const output = sum.map((row) => layerNorm(row, this.weight, this.bias));
      this.last = { x, y, sum, output };
      return output;
    }
  }

  // ---------------------------------------------------------------- The stacks (chapters 6 and 7)

  /** Self-attention, then a feed-forward network, each in a Residual.  (s, d) -> (s, d) */
  class EncoderLayer {
    constructor(tensors, name, nHeads) {
      this.selfAttention = new MultiHeadAttention(tensors, `${name}.self_attention`, nHeads);
      this.feedForward = new FeedForward(tensors, `${name}.feed_forward`);
      this.residual1 = new Residual(tensors, `${name}.residual1`);
      this.residual2 = new Residual(tensors, `${name}.residual2`);
    }

    forward(x) {
      x = this.residual1.forward(x, (y) => this.selfAttention.forward(y));
      return this.residual2.forward(x, (y) => this.feedForward.forward(y));
    }
  }

  /** Self-attention to what is written, cross-attention to the source, a feed-forward network. */
  class DecoderLayer {
    constructor(tensors, name, nHeads) {
      this.selfAttention = new MultiHeadAttention(tensors, `${name}.self_attention`, nHeads);
      this.crossAttention = new MultiHeadAttention(tensors, `${name}.cross_attention`, nHeads);
      this.feedForward = new FeedForward(tensors, `${name}.feed_forward`);
      this.residual1 = new Residual(tensors, `${name}.residual1`);
      this.residual2 = new Residual(tensors, `${name}.residual2`);
      this.residual3 = new Residual(tensors, `${name}.residual3`);
    }

    /** x holds the newest token alone; the cache has the others.  (1, d), (s, d) -> (1, d) */
    forward(x, memory, cache) {
      x = this.residual1.forward(x, (y) => this.selfAttention.forward(y, null, cache.self));
      x = this.residual2.forward(x, (y) => this.crossAttention.forward(y, memory, cache.cross));
      return this.residual3.forward(x, (y) => this.feedForward.forward(y));
    }
  }

  /** Return what each layer of a stack computed at its last call: the `last` of its parts, by name. */
  function trace(layers) {
    const looked = (layer) => Object.entries(layer).map(([name, part]) => [name, part.last]);
    return layers.map((layer) => Object.fromEntries(looked(layer)));
  }

  // ---------------------------------------------------------------- The whole (chapter 8)

  // What this code can do; a configuration that asks for anything else is refused. The last four
  // may be left out of the file.
  const KNOWN = {
    activation: "relu", gated: false, norm_first: false, bias: true, positions: "sinusoidal",
    tie: "all", pad: PAD, bos: BOS, eos: EOS, output_bias: false,
  };

  class Transformer {
    /** `config` is the content of config.json, `tensors` come from readSafetensors. */
    constructor(config, tensors) {
      for (const [name, value] of Object.entries({ ...KNOWN, ...config })) {
        if (name in KNOWN && value !== KNOWN[name]) {
          throw new Error(`${name} is ${value}, and only ${KNOWN[name]} is known here`);
        }
      }
      this.config = config;
      const stack = (name, Layer) =>
        Array.from({ length: config.n_layers }, (_, i) =>
          new Layer(tensors, `${name}.layers.${i}`, config.n_heads));
      this.embedding = new Embedding(tensors, "src_embedding"); // of source and target: they are tied
      this.encoder = stack("encoder", EncoderLayer);
      this.decoder = stack("decoder", DecoderLayer);
    }

    /** Read the source ids, s of them.  -> the memory (s, d) */
    encode(src) {
      return this.encoder.reduce((x, layer) => layer.forward(x), this.embedding.forward(src));
    }

    /** Read the newest target token.  -> the logits of the next one, (v,) */
    decode(token, memory, cache) {
      const x = this.embedding.forward([token], cache[0].self.length);
      const [y] = this.decoder.reduce((z, layer, i) => layer.forward(z, memory, cache[i]), x);
      // the output matrix is the embedding once more: a logit is a dot product with a token's vector
      const logit = (_, id) => dot(this.embedding.vector(id), y);
      return Float32Array.from({ length: this.config.vocab_size }, logit);
    }

    /** Return an empty cache for decode: for each layer, that of the target and of the source. */
    newCache() {
      return this.decoder.map(() => ({ self: new KeyValueCache(), cross: new KeyValueCache() }));
    }
  }

  // ---------------------------------------------------------------- Decoding (chapter 12)

  /** Return the ids of the k largest entries, the largest first; of equal ones, the lower id. */
  function largest(x, k) {
    return [...x.keys()].sort((a, b) => x[b] - x[a] || a - b).slice(0, k);
  }

  /**
   * Return the probability of each next token. PAD and BOS never come next.  (v,) -> (v,)
   * The logits are divided by the temperature, and all but the k largest are cut off.
   */
  function nextProbabilities(logits, temperature = 1, k = logits.length) {
    const allowed = logits.map((logit, id) => (id === PAD || id === BOS ? -Infinity : logit));
    if (k < logits.length) {
      const kept = new Set(largest(allowed, k));
      allowed.forEach((_, id) => kept.has(id) || (allowed[id] = -Infinity));
    }
    return softmax(allowed.map((logit) => logit / temperature));
  }

  /** Lay the probabilities end to end, from 0 to 1, and return the token that u falls on. */
  function draw(probabilities, u) {
    let end = 0;
    const ends = Array.from(probabilities, (p) => (end += p));
    return ends.findIndex((x) => x > u * end); // `end` is 1, but for rounding
  }

  /** Return the token of the highest probability, the first of several.  (v,) -> an id */
  function likeliest(probabilities) {
    return probabilities.indexOf(probabilities.reduce((a, b) => Math.max(a, b)));
  }

  /**
   * Take the likeliest token, always; or what `choose` takes, which is given the probabilities and
   * the number of tokens before. Yields one step after the other, so that whoever asks can show
   * each before the next is computed: the token, the logits and probabilities (v,), and the
   * cross-attention of each layer and head to the source, (n, h, s).
   * Ends with EOS, or at 50 tokens more than the source has (section 6.1).
   */
  function* greedySearch(model, src, choose = likeliest) {
    const maxLen = src.length + 50;
    const memory = model.encode(src);
    const cache = model.newCache();
    let token = BOS;
    for (let length = 0; length < maxLen && token !== EOS; length++) {
      const logits = model.decode(token, memory, cache);
      const probabilities = nextProbabilities(logits);
      token = choose(probabilities, length);
      const cross = trace(model.decoder).map(({ crossAttention }) =>
        crossAttention.heads.map(({ weights: [row] }) => row));
      yield { token, logits, probabilities, cross };
    }
  }

  // ---------------------------------------------------------------- Translator (chapter 13)

  /** A model and its tokeniser: text in, text out. */
  class Translator {
    constructor(model, tokenizer) {
      this.model = model;
      this.tokenizer = tokenizer;
    }

    /** Return the translator that comes with the book: dates-model.js has its files. */
    static dates() {
      const { config, tokenizer, safetensors } = literate.datesModel;
      const characters = atob(safetensors);
      const bytes = new Uint8Array(characters.length);
      for (let i = 0; i < bytes.length; i++) bytes[i] = characters.charCodeAt(i);
      const model = new Transformer(config, readSafetensors(bytes.buffer));
      return new Translator(model, new Tokenizer(tokenizer));
    }

    /** Return the ids of a text that the model reads: those of its normal form, and EOS. */
    source(text) {
      return [...this.tokenizer.encode(normalForm(text)), EOS];
    }

    /** Return the greedy translation; an empty text stays empty. */
    translate(text) {
      if (!normalForm(text)) return "";
      const steps = [...greedySearch(this.model, this.source(text))];
      return this.tokenizer.decode(steps.map((step) => step.token));
    }
  }

  Object.assign(literate, {
    readSafetensors, sinusoidalPosition, Transformer, trace, largest, nextProbabilities, draw,
    greedySearch, Translator,
  });
}
