"""The wrong versions: what users of other implementations have met, and what is easily written.

Each line is the smallest change that makes the fault. If the package's text changes, a mutant may
no longer fit; the run then says which, and its line here is to be written anew.
"""

from . import Mutant

ATTENTION = [
    Mutant(
        "mask polarity turned round",
        "attention",
        "weights = scores.masked_fill(~mask, lowest)",
        "weights = scores.masked_fill(mask, lowest)",
        "test_attention.test_true_means_may_attend",
    ),
    Mutant(
        "mask polarity turned round on the fused path",
        "attention",
        "attn_mask=mask,",
        "attn_mask=None if mask is None else ~mask,",
        "test_attention.test_true_means_may_attend",
    ),
    Mutant(
        "masks of numbers let in",
        "attention",
        "if mask.dtype != torch.bool:",
        "if mask.dtype == torch.int8:",
        "test_attention.test_a_mask_that_is_not_boolean_is_refused",
    ),
    Mutant(
        "mask added to the scores",
        "attention",
        "scores.masked_fill(~mask, lowest)",
        "(scores + mask)",
        "test_attention.test_equals_pytorch",
    ),
    Mutant(
        "minus infinity for a masked score",
        "attention",
        "lowest = torch.finfo(scores.dtype).min",
        "return scores.masked_fill(~mask, -torch.inf).softmax(dim=-1)",
        "test_attention.test_a_query_that_may_attend_to_nothing_gets_zero",
    ),
    Mutant(
        "even weights where nothing may be attended to",
        "attention",
        "return weights.masked_fill(~mask, 0.0)",
        "return weights",
        "test_attention.test_weights_are_shares_of_what_may_be_attended_to",
    ),
    Mutant(
        "scaled by the width and not by its root",
        "attention",
        "math.sqrt(query.size(-1))",
        "query.size(-1)",
        "test_attention.test_equals_pytorch",
    ),
    Mutant(
        "infinity behind a mask let in",
        "attention",
        "if mask is not None and not value.isfinite().all():",
        "if False:",
        "test_attention.test_a_value_that_is_not_finite_is_refused_behind_a_mask",
    ),
    Mutant(
        "causal mask in the wrong corner",
        "attention",
        ".tril(s - t)",
        ".tril()",
        "test_attention.test_one_query_and_four_keys",
    ),
    Mutant(
        "causal mask that shows the next position",
        "attention",
        ".tril(s - t)",
        ".tril(s - t + 1)",
        "test_attention.test_causal_mask_ends_at_the_last_key",
    ),
    Mutant(
        "fused causal mask in the wrong corner",
        "attention",
        "if causal and (mask is not None or t != s):",
        "if causal and mask is not None:",
        "test_attention.test_fused_causal_equals_the_mask",
    ),
]

EMBEDDING = [
    Mutant(
        "exponent of the sinusoid doubled",
        "embedding",
        "(even / d_model)",
        "(2 * even / d_model)",
        "test_embedding.test_position_one_of_width_four",
    ),
    Mutant(
        "embedding not scaled",
        "embedding",
        "return super().forward(ids) * math.sqrt(self.embedding_dim)",
        "return super().forward(ids)",
        "test_embedding.test_embedding_is_a_product_with_one_hot_vectors",
    ),
    Mutant(
        "table of positions grown too little",
        "embedding",
        "max(end, 2 * len(self.table))",
        "2 * len(self.table)",
        "test_embedding.test_the_table_of_sinusoids_grows",
    ),
    Mutant(
        "position always 0 step by step",
        "embedding",
        "self.positions(ids.size(1), start)",
        "self.positions(ids.size(1))",
        "test_model.test_step_by_step_equals_teacher_forced",
    ),
    Mutant(
        "published vectors scaled twice",
        "embedding",
        "= vector / math.sqrt(width)",
        "= vector",
        "test_embedding.test_published_vectors_are_loaded",
    ),
    Mutant(
        "embedding dropout left out",
        "embedding",
        "return self.dropout(self.tokens(ids)",
        "return (self.tokens(ids)",
        "test_embedding.test_embedding_drops_out_while_training_only",
    ),
]

MULTI_HEAD = [
    Mutant(
        "heads split by a view without the transpose",
        "multi_head",
        "x.unflatten(-1, (n_heads, -1)).transpose(1, 2)",
        "x.reshape(x.size(0), n_heads, x.size(1), -1)",
        "test_multi_head.test_heads_are_slices_of_each_vector",
    ),
    Mutant(
        "heads joined by a view without the transpose",
        "multi_head",
        "x.transpose(1, 2).flatten(2)",
        "x.reshape(x.size(0), x.size(2), -1)",
        "test_multi_head.test_merging_reverses_splitting",
    ),
    Mutant(
        "keys and values exchanged",
        "multi_head",
        "key, value = self._project(memory, 1, 3)",
        "value, key = self._project(memory, 1, 3)",
        "test_multi_head.test_equals_pytorch",
    ),
    Mutant(
        "attention dropout in evaluation",
        "multi_head",
        "self.dropout if self.training else 0.0",
        "self.dropout",
        "test_multi_head.test_attention_dropout_is_off_in_evaluation",
    ),
    Mutant(
        "cache that forgets when it grows",
        "multi_head",
        "new[:, :, : self.length] = old[:, :, : self.length]",
        "new.zero_()",
        "test_multi_head.test_cached_self_attention_equals_the_full_pass",
    ),
    Mutant(
        "cache that keeps the last position of a piece",
        "multi_head",
        "self._key[:, :, self.length : end] = key",
        "self._key[:, :, self.length : end] = key[:, :, -1:]",
        "test_multi_head.test_the_cache_holds_what_was_appended",
    ),
    Mutant(
        "cache whose values do not follow the beams",
        "multi_head",
        "self._key[rows], self._value[rows]",
        "self._key[rows], self._value[rows.sort().values]",
        "test_decoder.test_rows_of_the_cache_can_be_selected",
    ),
    Mutant(
        "cross-attention's cache filled at each step",
        "multi_head",
        "if not cache.length:",
        "if True:",
        "test_multi_head.test_cached_cross_attention_reads_the_memory_once",
    ),
    Mutant(
        "causal mask forgotten while recording",
        "multi_head",
        "            if causal:\n",
        "            if False:\n",
        "test_multi_head.test_recording_changes_nothing",
    ),
]

LAYERS = [
    Mutant(
        "unbiased deviation in the layer norm",
        "layers",
        ".square().mean(dim=-1, keepdim=True)",
        ".square().sum(dim=-1, keepdim=True) / (x.size(-1) - 1)",
        "test_layers.test_layer_norm_divides_by_d",
    ),
    Mutant(
        "eps outside the root",
        "layers",
        "torch.sqrt(variance + eps)",
        "(torch.sqrt(variance) + eps)",
        "test_layers.test_layer_norm_equals_pytorch",
    ),
    Mutant(
        "pre-norm under post-norm's name",
        "layers",
        "        if self.norm_first:",
        "        if True:",
        "test_encoder.test_post_norm_output_is_normalised",
    ),
    Mutant(
        "residual left out",
        "layers",
        "return self.norm(x + self.dropout(sublayer(x)))",
        "return self.norm(self.dropout(sublayer(x)))",
        "test_encoder.test_layer_equals_pytorch",
    ),
    Mutant(
        "dropout on the stream",
        "layers",
        "x + self.dropout(sublayer(self.norm(x)))",
        "self.dropout(x + sublayer(self.norm(x)))",
        "test_layers.test_residual_drops_out_what_the_sublayer_adds",
    ),
    Mutant(
        "activation on the wrong branch of the gate",
        "layers",
        "act(self.gate(x)) * self.linear1(x)",
        "self.gate(x) * act(self.linear1(x))",
        "test_layers.test_feed_forward_follows_its_formula",
    ),
]

STACKS = [
    Mutant(
        "one encoder layer used n times",
        "encoder",
        "EncoderLayer(d_model, n_heads, d_ff, norm_first=norm_first, **options)\n"
        "            for _ in range(n_layers)",
        "[EncoderLayer(d_model, n_heads, d_ff, norm_first=norm_first, **options)] * n_layers",
        "test_encoder.test_layers_share_nothing",
    ),
    Mutant(
        "decoder layers that start as copies",
        "decoder",
        "DecoderLayer(d_model, n_heads, d_ff, norm_first=norm_first, **options)\n"
        "            for _ in range(n_layers)",
        "map(__import__('copy').deepcopy, n_layers * "
        "[DecoderLayer(d_model, n_heads, d_ff, norm_first=norm_first, **options)])",
        "test_decoder.test_layers_share_nothing",
    ),
    Mutant(
        "pre-norm stack without its last norm",
        "encoder",
        "nn.LayerNorm(d_model) if norm_first else nn.Identity()",
        "nn.Identity()",
        "test_model.test_parameters_are_counted_right",
    ),
    Mutant(
        "encoder's mask forgotten",
        "encoder",
        "self.self_attention(y, mask=mask)",
        "self.self_attention(y)",
        "test_encoder.test_padding_has_no_influence",
    ),
    Mutant(
        "causal mask forgotten",
        "decoder",
        "causal=True",
        "causal=False",
        "test_model.test_the_last_target_token_does_not_leak",
    ),
    Mutant(
        "target told by looking at it",
        "decoder",
        "causal=True",
        "causal=False",
        "test_model.test_random_tokens_cannot_be_predicted",
    ),
    Mutant(
        "cross-attention with the target's mask",
        "decoder",
        "self.cross_attention(y, memory, memory_mask, cache=cross)",
        "self.cross_attention(y, memory, mask, cache=cross)",
        "test_model.test_a_longer_neighbour_changes_nothing",
    ),
    Mutant(
        "padding rows masked as well",
        "decoder",
        "return padding_mask(ids, pad) &",
        "return (ids != pad)[:, None, :, None] & padding_mask(ids, pad) &",
        "test_decoder.test_padding_is_hidden_as_a_key_only",
    ),
]

MODEL = [
    Mutant(
        "tie of the output lost",
        "model",
        "self.output.weight = self.tgt_embedding.tokens.weight",
        "self.output.weight.data.copy_(self.tgt_embedding.tokens.weight)",
        "test_model.test_tying_shares_one_matrix",
    ),
    Mutant(
        "tie of the embeddings lost",
        "model",
        "self.src_embedding.tokens.weight = self.tgt_embedding.tokens.weight",
        "self.src_embedding.tokens.weight.data.copy_(self.tgt_embedding.tokens.weight)",
        "test_model.test_parameters_are_counted_right",
    ),
    Mutant(
        "projections drawn as one matrix",
        "model",
        "parameter.chunk(3)",
        "parameter.chunk(1)",
        "test_model.test_weights_start_as_described",
    ),
    Mutant(
        "padding seen where one sentence has none",
        "model",
        "None if mask.all() else mask",
        "None if mask.all(-1).any() else mask",
        "test_model.test_a_longer_neighbour_changes_nothing",
    ),
    Mutant(
        "every step decoded at position 0",
        "model",
        "start = cache.length if cache else 0",
        "start = 0",
        "test_model.test_step_by_step_equals_teacher_forced",
    ),
    Mutant(
        "cross-attention counted once a layer too few",
        "model",
        '"attention": 3 * n * attention',
        '"attention": 2 * n * attention',
        "test_model.test_parameters_of_the_paper",
    ),
    Mutant(
        "loaded model left in training mode",
        "model",
        "return model.eval()",
        "return model",
        "test_model.test_a_loaded_model_is_the_saved_one",
    ),
]

DATA = [
    Mutant(
        "target not shifted",
        "data",
        "return self.tgt[:, 1:]",
        "return self.tgt[:, :-1]",
        "test_data.test_the_target_is_shifted_by_one",
    ),
    Mutant(
        "padding counted as tokens",
        "data",
        "int((self.gold != PAD).sum())",
        "self.gold.numel()",
        "test_data.test_the_target_is_shifted_by_one",
    ),
    Mutant(
        "target without its end",
        "data",
        "[BOS, *tokenizer.encode(target), EOS]",
        "[BOS, *tokenizer.encode(target)]",
        "test_data.test_every_pair_comes_once_an_epoch",
    ),
    Mutant(
        "special tokens read from the text",
        "data",
        "bpe.encode_special_tokens = True",
        "bpe.encode_special_tokens = False",
        "test_data.test_any_text_comes_back",
    ),
    Mutant(
        "last batch dropped",
        "data",
        "self.plan(epoch)[start:]",
        "self.plan(epoch)[start:-1]",
        "test_data.test_every_pair_comes_once_an_epoch",
    ),
    Mutant(
        "budget exceeded by one pair",
        "data",
        "(len(batches[-1]) + 1) * self.length(i) > self.max_tokens",
        "len(batches[-1]) * self.length(i) > self.max_tokens",
        "test_data.test_every_pair_comes_once_an_epoch",
    ),
    Mutant(
        "same order in each epoch",
        "data",
        'random.Random(f"{self.seed} {epoch}")',
        'random.Random(f"{self.seed}")',
        "test_data.test_epochs_and_seeds_differ",
    ),
    Mutant(
        "byte-order mark read as text",
        "data",
        r'.removeprefix(b"\xef\xbb\xbf")',
        "",
        "test_data.test_pairs_are_read",
    ),
    Mutant(
        "source sentences on both sides of the split",
        "data",
        "if p[0] not in held_out]",
        "if p not in held_out]",
        "test_data.test_splitting_keeps_sources_apart",
    ),
]

TRAINING = [
    Mutant(
        "loss averaged over batches and not over tokens",
        "training",
        "config.label_smoothing) / n_tokens",
        "config.label_smoothing) / batch.n_tokens / len(batches)",
        "test_training.test_accumulated_loss_is_averaged_over_all_tokens",
    ),
    Mutant(
        "accumulated gradients not divided",
        "training",
        "config.label_smoothing) / n_tokens",
        "config.label_smoothing) / batch.n_tokens",
        "test_training.test_small_batches_have_the_gradient_of_a_large_one",
    ),
    Mutant(
        "padding counted in the loss",
        "training",
        "ignore_index=pad,",
        "ignore_index=-100,",
        "test_training.test_loss_follows_its_formula",
    ),
    Mutant(
        "label smoothing forgotten",
        "training",
        "label_smoothing=smoothing,",
        "label_smoothing=0.0,",
        "test_training.test_loss_follows_its_formula",
    ),
    Mutant(
        "accuracy that counts padding",
        "training",
        "real = gold != pad",
        "real = gold == gold",
        "test_training.test_accuracy_does_not_count_padding",
    ),
    Mutant(
        "schedule without a warm-up",
        "training",
        "min(step**-0.5, step * warmup**-1.5)",
        "step**-0.5",
        "test_training.test_learning_rates_of_the_paper",
    ),
    Mutant(
        "schedule off by one",
        "training",
        "learning_rate(self.step, ",
        "learning_rate(self.step + 1, ",
        "test_training.test_the_trainer_follows_the_schedule",
    ),
    Mutant(
        "first batch of later epochs skipped",
        "training",
        "self.epoch, self.position = self.epoch + 1, 0",
        "self.epoch, self.position = self.epoch + 1, 1",
        "test_training.test_the_trainer_goes_through_every_epoch",
    ),
    Mutant(
        "gradient not clipped",
        "training",
        "if config.clip:",
        "if False:",
        "test_training.test_an_update_is_that_of_adam",
    ),
    Mutant(
        "one weight too many in the average",
        "training",
        "if self.step > newest",
        "if self.step >= newest",
        "test_training.test_the_result_is_the_mean_of_the_last_weights",
    ),
    Mutant(
        "loss that is not finite let in",
        "training",
        "if not math.isfinite(total):",
        "if False:",
        "test_training.test_a_loss_that_is_not_finite_stops_the_training",
    ),
    Mutant(
        "resumed with fresh moments",
        "training",
        'self.optimizer.load_state_dict(state["optimizer"])',
        "pass",
        "test_training.test_a_resumed_run_ends_as_one_never_stopped",
    ),
    Mutant(
        "resumed with other random numbers",
        "training",
        'torch.set_rng_state(state["random"].cpu())',
        "pass",
        "test_training.test_a_resumed_run_ends_as_one_never_stopped",
    ),
    Mutant(
        "resumed at the start of the epoch",
        "training",
        "self.batches.epoch(self.epoch, self.position)",
        "self.batches.epoch(self.epoch)",
        "test_training.test_a_resumed_run_ends_as_one_never_stopped",
    ),
]

USE = [
    Mutant(
        "first beams all alike",
        "decoding",
        "total[:, 0] = 0.0",
        "total[:] = 0.0",
        "test_decoding.test_first_step_gives_different_hypotheses",
    ),
    Mutant(
        "length penalty turned round",
        "decoding",
        "return ((5 + length) / 6) ** alpha",
        "return ((5 + length) / 6) ** -alpha",
        "test_decoding.test_length_penalty",
    ),
    Mutant(
        "translations in the order of their lengths",
        "translation",
        "zip(chunk, best, strict=True)",
        "zip(sorted(chunk), best, strict=True)",
        "test_translation.test_translations_come_in_order",
    ),
    Mutant(
        "translated with dropout",
        "translation",
        "model.eval(), tokenizer",
        "model, tokenizer",
        "test_translation.test_a_translator_evaluates",
    ),
]

MUTANTS = [
    *ATTENTION,
    *EMBEDDING,
    *MULTI_HEAD,
    *LAYERS,
    *STACKS,
    *MODEL,
    *DATA,
    *TRAINING,
    *USE,
]
