"""Results of the functions that tests/mutants breaks: the tensors in which a record can part first if one of them is wrong, by
exercise, or by the name of a broken lesson. Each is a pattern of a sentence of compare_records, "step 0, forward: h.0.attn.heads".
A wrong number is located if its sentence begins so: the function makes the tensor, or is the last before it that notes its result.
"""

ROWS = r"step \d+, forward: "
SUMS = r"step \d+, gradients summed: "
NORM = r"step \d+, loss and norm: gradient norm"
LOSS = r"step \d+, loss and norm: loss"
UPDATE = r"step \d+, update: "
STREAM = r"step \d+, backward: gradient of "
OWN_SEQUENCES = r"step \d+, (forward: no rank computes|forward: embedding|backward: gradient of logits)"
NEXT_STEP = r"step [1-9]\d*, forward: "  # with parameters that the update before it has left
ANY = r"step \d+, "
SUMS_OF_EXPERTS = SUMS + r"summed gradient of h\.\d+\.mlp\.experts"
EXPERTS = r"step \d+, (forward: h\.\d+\.mlp\b|backward: gradient of h\.\d+\.ln_2|gradients summed: summed gradient of h\.\d+\.mlp)"

MADE_BY = {
    # Kernels of the backward pass and of the optimizer.
    "01.1": STREAM + r"(ln_f\.|h\.\d+\.(ln_\d\.|\w+\.stream)|embedding)",
    "01.2": STREAM + r"h\.\d+\.attn\.q_k_v",
    "01.3": UPDATE,
    # Collectives, where training uses them: sums of gradients, rows of experts.
    "02.1": SUMS, "02.2": SUMS,
    "02.8": ROWS + r"h\.\d+\.mlp\b", "02.9": ROWS + r"h\.\d+\.mlp\b",
    # Sums of gradients over ranks, and their buckets.
    "03.1": SUMS, "03.2": SUMS, "03.3": f"({SUMS}|{STREAM})", "03_no_wait": SUMS, "03_subtrees_one_by_one": SUMS,
    "04.1": f"({ROWS}|{SUMS}|{UPDATE})",
    "04.2": NORM,
    "04.3": f"({NORM}|{LOSS}|{UPDATE}|{NEXT_STEP})",
    "05.1": f"({SUMS}|{STREAM})", "05.2": f"({SUMS}|{OWN_SEQUENCES})", "05_ranks_from_the_last": SUMS,
    "05.3": f"({SUMS}|{STREAM})",
    # Parameters that are gathered: the layer that reads them first.
    "06.1": f"({ROWS}|{STREAM})", "06.2": f"({ROWS}|{STREAM})", "06.4": f"({ROWS}|{STREAM})",
    "06.3": f"({SUMS}|{NORM}|{UPDATE}|{ROWS})",
    "06_updates_forgotten": UPDATE,
    "07.1": f"({SUMS}|{UPDATE})", "07.3": UPDATE, "07_moments_swapped_on_read": UPDATE, "07_updated_in_the_first_pass": UPDATE,
    "07_sums_not_begun_anew": f"({SUMS}|{NORM})", "07_early_sums_without_the_tied": f"({SUMS}|{NORM})",
    "07_divided_by_own_tokens": f"({SUMS}|{NORM}|{STREAM})",
    "07_overtakes": f"({UPDATE}|{NEXT_STEP})",
    # Layers that are divided.
    "08.1": ROWS + r"h\.\d+\.",
    "08.2": ROWS + r"(embedding|h\.\d+\.)",
    "08.4": f"({LOSS}|{STREAM}logits)",
    "08_backward_sum_missing": STREAM + r"h\.\d+\.(ln_\d|\w+\.stream)",
    "08_bias_on_every_rank": ROWS + r"h\.\d+\.(attn|mlp)\b",
    "08_dropout_keyed_by_rank": ROWS + r"(embedding|h\.\d+\.\w+\.(stream|heads))",
    "08_rows_by_sequence": ROWS + r"(embedding|h\.\d+\.\w+\.(stream|heads))",
    "08_heads_keyed_by_place": ROWS + r"h\.\d+\.attn\.heads",
    "08_norm_counts_what_all_have": NORM,
    "08_row_gradients_not_begun_anew": SUMS, "08_row_gradients_not_summed": SUMS,
    # Pipelines: order of micro-batches, what is kept for them, rows between stages.
    "09.1": f"({SUMS}|{STREAM}|{ROWS})", "09.2": f"({STREAM}|{ROWS})", "09.3": ANY, "11.1": f"({SUMS}|{STREAM}|{ROWS})",
    "09_buffer_given_back_too_early": f"({ROWS}|{STREAM})", "09_buffer_not_waited_for": f"({ROWS}|{STREAM})",
    "09_copy_counts_in_the_norm": NORM, "11_copy_counts_in_the_norm": NORM,
    "09_gradients_of_stages_mixed": f"({SUMS}|{STREAM})",
    "09_tied_embedding_not_summed": SUMS, "09_tied_embedding_summed_twice": SUMS,
    "11_norm_gradients_not_zeroed": f"({STREAM}|{SUMS})", "11_weights_of_another_block": f"({STREAM}|{SUMS})",
    # Meshes: who computes what, who sums with whom.
    "10.1": ANY, "10.2": ANY, "10.3": NORM, "10_norm_counts_replicas": NORM,
    "10_divided_by_micro_batches": f"({STREAM}logits|{SUMS}|{NORM}|{LOSS})",
    "10_divided_by_tokens_of_a_replica": f"({STREAM}logits|{SUMS}|{NORM}|{LOSS})",
    "10_parameters_not_gathered": f"({UPDATE}|{NEXT_STEP})", "13_parameters_stay_old": f"({UPDATE}|{NEXT_STEP})",
    "10_parts_outermost": ANY, "10_replicas_are_neighbours": ANY,
    "10_replicas_with_the_same_sequences": OWN_SEQUENCES, "13.1": OWN_SEQUENCES,
    "10_tied_added_up_before_replicas": SUMS, "10_tied_after_the_update": f"({SUMS}|{NORM})",
    "13.2": NORM, "13_norm_counts_tensor_parallel_ranks_once": NORM,
    "13_replicas_not_summed": SUMS, "13_rows_not_summed": SUMS,
    # The two losses of BERT.
    "12.1": SUMS, "12.2": f"({LOSS}|{STREAM}|{SUMS}|{NORM})",
    "12_freed_too_early": f"({ROWS}|{STREAM})", "12_pooler_of_the_wrong_row": f"({LOSS}|{STREAM})",
    # Attention over sequences that are divided.
    "14.1": ROWS + r"h\.\d+\.attn\.heads", "14.2": f"({ROWS}|{STREAM})" + r"h\.\d+\.attn\.(heads|q_k_v)",
    "14_gradients_replace_those_before": STREAM + r"h\.\d+\.attn\.q_k_v",
    "14_queries_in_order_of_ranks": STREAM + r"h\.\d+\.attn\.q_k_v",
    "14_zigzag_is_contiguous": ROWS + r"(embedding|h\.\d+\.attn\.heads)",
    # Experts: of their insides nothing is noted between the input's norm and the MLP's output.
    "15.1": EXPERTS, "16.2": EXPERTS, "16.3": EXPERTS, "16.1": f"({SUMS}|{ROWS})",
    "15_experts_summed_over_all": SUMS_OF_EXPERTS, "15_sums_in_order_of_ranks": SUMS_OF_EXPERTS,
    "16_experts_not_summed": SUMS_OF_EXPERTS,
    "15_norm_of_own_experts": NORM, "16_norm_of_own_experts": NORM, "16_norm_of_own_shards_along_cp": NORM,
    "15_returned_by_the_wrong_counts": ROWS + r"h\.\d+\.mlp\b",
    "16_bias_of_each_part": ROWS + r"h\.\d+\.mlp\b",
    "16_input_gradients_of_one_part": STREAM + r"h\.\d+\.ln_2",
    "16_losses_of_own_tokens": LOSS,
    "16_pull_of_the_run": f"({LOSS}|{STREAM}" + r"h\.\d+\.ln_2|" + STREAM + r"h\.\d+\.mlp\.router)",
    "16_rows_of_the_first_run": f"({STREAM}|{SUMS})", "16_rows_of_the_other_run": f"({STREAM}|{SUMS}|{ROWS})",
}
