// The tokeniser of the date model in the page: byte-pair encoding on bytes, with single digits.
// It reads the very tokenizer.json that `Tokenizer.load` of the package reads (chapter 9), does
// exactly what that file asks for, and refuses a file that asks for anything else.
"use strict";
globalThis.literate ??= {};

{
  const SPECIAL_TOKENS = ["<pad>", "<bos>", "<eos>", "<unk>"];
  const [PAD, BOS, EOS, UNK] = SPECIAL_TOKENS.keys();

  // Unicode's white space. JavaScript's own \s has a byte-order mark too, and no "next line".
  const SPACE = "\\t-\\r \\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
  const ENDS = new RegExp(`^[\\x1c-\\x1f${SPACE}]+|[\\x1c-\\x1f${SPACE}]+$`, "g"); // of str.strip

  // What the file must say, apart from its vocabulary and its merges.
  const DIGITS = { type: "Digits", individual_digits: true };
  const BYTES = { type: "ByteLevel", add_prefix_space: false, trim_offsets: true, use_regex: true };
  const EXPECTED = {
    normalizer: null,
    pre_tokenizer: { type: "Sequence", pretokenizers: [DIGITS, BYTES] },
    decoder: { ...BYTES, add_prefix_space: true },
    post_processor: null,
    added_tokens: SPECIAL_TOKENS,
    model: ["BPE", null, null, null, null, false, false, false],
  };

  // Digits part a text first. Then each part falls into words, with the space before them, into
  // runs of other signs, and into white space.
  const DIGIT = /\p{N}/u;
  const WORD = new RegExp(
    `'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^${SPACE}\\p{L}\\p{N}]+` +
      `|[${SPACE}]+(?![^${SPACE}])|[${SPACE}]+`,
    "gu",
  );

  /** Return text without spaces at its ends, each accented letter a single character (NFC). */
  function normalForm(text) {
    return text.replace(ENDS, "").normalize("NFC");
  }

  /** Return a visible character for each of the 256 bytes: itself, if it can be seen. */
  function byteAlphabet() {
    const visible = (b) => (b > 32 && b < 127) || (b > 160 && b !== 173);
    let next = 256;
    return Array.from({ length: 256 }, (_, b) => String.fromCharCode(visible(b) ? b : next++));
  }

  /** Say what of a tokenizer.json this code does not know; an empty text if it knows all. */
  function unknownParts(json) {
    const m = json.model;
    const found = {
      ...json,
      added_tokens: json.added_tokens.map((token) => token.content),
      model: [m.type, m.dropout, m.unk_token, m.continuing_subword_prefix, m.end_of_word_suffix,
        m.fuse_unk, m.byte_fallback, m.ignore_merges],
    };
    const same = (name) => JSON.stringify(found[name]) === JSON.stringify(EXPECTED[name]);
    return Object.keys(EXPECTED).filter((name) => !same(name)).join(", ");
  }

  class Tokenizer {
    /** `json` is the content of a tokenizer.json. */
    constructor(json) {
      const unknown = unknownParts(json);
      if (unknown) throw new Error(`a tokeniser of another kind; what differs: ${unknown}`);
      this.idOf = new Map(Object.entries(json.model.vocab));
      this.tokens = [...this.idOf].sort(([, i], [, j]) => i - j).map(([token]) => token);
      this.rankOf = new Map(json.model.merges.map((pair, rank) => [pair.join(" "), rank]));
      this.alphabet = byteAlphabet();
      this.byteOf = new Map(this.alphabet.map((character, byte) => [character, byte]));
    }

    /** Return the ids of a text, without BOS and EOS. */
    encode(text) {
      if (!text.isWellFormed()) throw new Error("not valid Unicode: half of a surrogate pair");
      const parts = text.split(new RegExp(`(${DIGIT.source})`, "u"));
      const words = parts.flatMap((part) => part.match(WORD) ?? []);
      return words.flatMap((word) => this.merge(word)).map((token) => this.idOf.get(token));
    }

    /** Merge the bytes of a word, always the pair that was learnt first, until none is known. */
    merge(word) {
      let parts = Array.from(new TextEncoder().encode(word), (byte) => this.alphabet[byte]);
      for (;;) {
        const pairs = parts.slice(1).map((part, i) => `${parts[i]} ${part}`);
        const ranks = pairs.map((pair) => this.rankOf.get(pair) ?? Infinity);
        const first = ranks.reduce((a, b) => Math.min(a, b), Infinity);
        if (first === Infinity) return parts;
        const merged = [];
        for (let i = 0; i < parts.length; i++) {
          if (ranks[i] === first) merged.push(parts[i] + parts[++i]);
          else merged.push(parts[i]);
        }
        parts = merged;
      }
    }

    /** Return the text of ids; special tokens vanish, and what is no UTF-8 becomes "�". */
    decode(ids) {
      const tokens = ids.filter((id) => id > UNK).map((id) => this.tokens[id]);
      const bytes = Array.from(tokens.join(""), (character) => this.byteOf.get(character));
      return new TextDecoder("utf-8", { ignoreBOM: true }).decode(new Uint8Array(bytes));
    }

    /** Return each token as a reader would write it: spaces as "␣", special tokens by name. */
    pieces(ids) {
      const name = (id) => SPECIAL_TOKENS[id] ?? this.decode([id]);
      return ids.map((id) => name(id).replaceAll(" ", "␣"));
    }
  }

  Object.assign(literate, { PAD, BOS, EOS, UNK, SPECIAL_TOKENS, normalForm, Tokenizer });
}
