// Lesson 12: BERT on the same sharding
//
// Builds on:    lesson 06 (ZeRO-3)
// New idea:     Sharding does not know the model. It gathers, frees and sums units of a parameter table, and asks only
//               in which order they are used. So an encoder that fills in masked tokens is trained with the classes of
//               lesson 06 as they are; with --zero=0 and 1 with those of lessons 03 and 04.
// Memory:       16 P / N bytes of model state per rank (f32: parameter 4, gradient 4, two moments 8), and the units that
//               are gathered; with --zero=1 8 P + 8 P / N, with --zero=0 16 P
// Traffic:      that of lesson 06, 04 or 03 for the same sizes of units
// Paper:        Devlin et al. 2018 (BERT), sections 3 and A; Rajbhandari et al. 2020 (ZeRO), section 5
//
// Sample runs:  mpirun -np 2 build/lessons/12_bert --steps=5
//               mpirun -np 4 build/lessons/12_bert --steps=3 --arithmetic=exact --zero=1 --dropout=0.1
//             * mpirun -np 4 build/lessons/12_bert --device=cuda --steps=20      (* needs a GPU; four of them for NCCL)
// Expect:       the same loss column for any number of ranks and any --zero; it begins at ln V + ln 2.
// (source scripts/mpi_environment.sh once; then mpirun works as written, also with more ranks than cores)

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "common/base/json.hpp"
#include "gpt2/bert/model.hpp"
#include "lessons/12_bert/costs.hpp"
#include "lessons/12_bert/sharding.hpp"
#include "lessons/frame/train.hpp"

namespace rankwise {

/// Pre-training of a BERT: masked tokens and the next sentence. The frame (lessons/frame/train.hpp) does everything
/// outside of a step.
class BertPretraining {
 public:
  /// One optimizer step over the global batch.
  StepReport train_step(std::int64_t step)
  {
    // BEGIN EXERCISE 12.2
    // NEW: the loss is the mean over masked tokens plus the mean over pairs, which are divided by different numbers. A
    // pair's gradients get a weight, so that the sum of both has to be divided only once, in the update. The weight
    // follows from the seed, so no rank has to ask another one.
    const double weight =
        static_cast<double>(pairs.predicted_in(step)) / static_cast<double>(run.batch.global_batch);
    BertLoss loss;
    std::vector<Tensor> sums;
    {
      const auto counted = run.count("world");
      for (const Range& sequences : sharding->micro_batches()) {
        pairs.load(step, sequences, host_batch);
        PairMicroBatch batch = place(kept, *run.stream, host_batch, sequences, step);
        batch.pair_weight = weight;
        loss += forward(batch);
        backward(batch);
      }
      sums = sharding->sums();
    }
    sum_over_ranks(loss);
    return update(step, loss, sums);
    // END EXERCISE
  }

  /// Losses of a micro-batch, summed over its masked tokens and its pairs.
  BertLoss forward(const PairMicroBatch& batch)
  {
    sharding->begin(batch.rows.sequences, batch.training);
    // NEW: the embedding adds segments, 0 for the first sentence and 1 for the second, and is normalised: (B T, C).
    const BertEmbeddingTensors embedding = bert_embedding_tensors(sharding->use(0));
    model.embedding.forward(kept.rows_before(0), work.output, kept, embedding, batch);
    // NEW: post-norm, x = norm(x + branch(x)); a query sees all keys before the padding, on both sides.
    forward_branches(0, model.branches.size(), batch);
    // NEW: two outputs: V logits for every token, of which the masked ones count, and 2 for each pair. The head's use
    // needs unit 0 as well, whose token embedding is its matrix.
    sharding->use(head_unit);
    run.charge_forward(head_unit);
    const BertLoss loss = model.head.forward(kept, head_parameters(), batch);
    if (!batch.training) sharding->end_uses();
    return loss;
  }

  /// Adds the gradient of that loss to the sums of this rank.
  void backward(const PairMicroBatch& batch)
  {
    const Tensor &dx = work.dstream, &scratch = work.output;  // (B T, C) both
    const BertHeadTensors p_head = head_parameters();         // still gathered from the end of the forward pass
    const BertEmbeddingTensors d_embedding = bert_embedding_tensors(sharding->gradients(0));
    const Tensor d_token = sharding->tied_to(d_embedding.token);
    // Head: both losses meet in dx, (B T, C), the gradient of the last branch's output.
    model.head.backward(dx, scratch, bert_head_tensors(sharding->gradients(head_unit), d_token), kept, p_head,
                        batch);
    unit_done(head_unit);
    // The branches, last first: norm, residual sum, matrices. With recomputation a block's forward pass runs again.
    for (std::size_t i = model.branches.size(); i-- > 0;) {
      const bool last_of_block = i % 2 == 1;
      if (run.shape.recompute && last_of_block) forward_branches(i - 1, i + 1, batch);
      const BertBranch& branch = model.branches[i];
      const BranchTensors p = branch_tensors(sharding->use(branch.unit()));
      const BranchTensors d = branch_tensors(sharding->gradients(branch.unit()));
      branch.backward(dx, d, scratch, work.wide, kept.branches[i], p, batch);
      unit_done(branch.unit());
    }
    // NEW: the embedding has a norm, whose weight the backward pass reads. The forward pass has kept a copy of these C
    // numbers, so the unit with V C parameters need not be gathered again for them.
    sharding->end_uses();
    model.embedding.backward(d_embedding, dx, scratch, kept, batch);
    unit_done(0);
    sharding->end();
  }

  /// Losses of the whole validation split, of which each rank computes every N-th micro-batch.
  BertLoss evaluate()
  {
    const std::int64_t B = run.batch.micro_batch, N = sharding->world().ranks();
    BertLoss loss;
    errors = {};
    for (std::int64_t first = 0; first < validation.pairs(); first += N * B) {
      const Range mine{first + sharding->world().rank() * B, B};
      validation.load_in_order(intersect(mine, {0, validation.pairs()}), host_batch);
      pad(host_batch, B);
      // Sequences and step are only keys of dropout masks, and validation has none.
      PairMicroBatch batch = place(kept, *run.stream, host_batch, {0, B}, 0);
      batch.training = false;
      loss += forward(batch);
      errors += model.head.errors(kept, batch);
    }
    sum_over_ranks(loss);
    sum_over_ranks(errors);
    losses = loss;
    return loss;
  }

 private:
  /// Forward pass of branches [first, last).
  void forward_branches(std::size_t first, std::size_t last, const PairMicroBatch& batch)
  {
    for (std::size_t i = first; i < last; ++i) {
      const BertBranch& branch = model.branches[i];
      const BranchTensors p = branch_tensors(sharding->use(branch.unit()));
      branch.forward(kept.rows_before(i + 1), work.output, kept.branches[i], p, batch);
      run.charge_forward(branch.unit());
    }
  }

  /// Parameters of the head while it is in use. Its matrix is the token embedding, (V, C).
  BertHeadTensors head_parameters() const
  {
    return bert_head_tensors(sharding->of(head_unit), bert_embedding_tensors(sharding->of(0)).token);
  }

  void unit_done(std::int64_t unit)
  {
    run.charge_backward(unit);
    sharding->unit_done(unit);
  }

  void sum_over_ranks(BertLoss& loss)
  {
    all_reduce_sum(loss.tokens, sharding->world());
    all_reduce_sum(loss.pairs, sharding->world());
  }

  /// AdamW with the mean gradient, clipped to a norm of at most --clip.
  StepReport update(std::int64_t step, const BertLoss& loss, const std::vector<Tensor>& sums)
  {
    // The number of masked tokens, all-reduced with the losses, is the one that a pair's weight was computed with.
    const auto masked_tokens = static_cast<double>(loss.tokens.valid_tokens);
    const double norm = sharding->norm_of(sums) / masked_tokens;
    const double learning_rate = run.schedule.at(step);
    check_finite(run, step, loss.mean(), norm, sharding->adamw().shards(), sums, sharding->world());
    sharding->adamw().step(run.kernels, sums, learning_rate, clip_factor(norm, run.options.clip) / masked_tokens);
    sharding->gather();
    return {loss.mean(), norm, learning_rate};
  }

 public:
  // ---- What the frame asks for --------------------------------------------------------------------------------------

  using Options = BertOptions;
  static constexpr const char *name = "12_bert", *title = "BERT on the same sharding";

  BertPretraining(Run& r, const Options& o) : run(r), options(o) {}

  HeldShards shards() { return {sharding->adamw().shards(), *run.stream}; }
  int replica() const { return sharding->replica(); }
  ShardedAdamW& optimizer() { return sharding->adamw(); }
  void after_load() { sharding->after_load(); }
  Tensor replicated() const { return sharding->replicated(); }
  std::string describe() const { return fmt::format("--zero={}; {}", options.zero, sharding->describe()); }
  /// Losses and accuracies of both tasks on the validation split.
  void report(Report& report) const
  {
    const auto line = [](const char* task, const LossSum& loss, const LossSum& wrong) {
      return Line{task, fmt::format("{:.6f}", loss.mean()), "",
                  fmt::format("nats; {:.2f} % of {} right", 100 * (1 - wrong.mean()), wrong.valid_tokens)};
    };
    report.block("validation", {line("masked tokens", losses.tokens, errors.tokens),
                                line("next sentence", losses.pairs, errors.pairs)});
    report.json()["tasks"] = {{"masked_loss", losses.tokens.mean()},
                              {"masked_accuracy", 1 - errors.tokens.mean()},
                              {"next_sentence_loss", losses.pairs.mean()},
                              {"next_sentence_accuracy", 1 - errors.pairs.mean()}};
  }

 private:
  // ---- What this rank holds -----------------------------------------------------------------------------------------

  Run& run;                                                          // device, data, ledgers
  const Options& options;                                            // as checked by the frame
  std::unique_ptr<Sharding> sharding = make_sharding(run, options);  // parameters, gradients, moments  <- NEW
  std::int64_t head_unit = unit_count(run.config) - 1;               // last unit of the table
  BertModel model{{run.config, run.kernels, {}, run.options.dropout, run.options.seed}, *run.stream};  // <- NEW
  PairLoader pairs{run.tokens.train, *run.tokens.tokenizer, options.pair_options()};  // masked pairs  <- NEW
  PairLoader validation{run.tokens.validation, *run.tokens.tokenizer, options.pair_options()};  // those to validate
  PairBatch host_batch;                                           // pairs before they are copied
  Workspace work{run.memory, run.config, run.shape};              // scratch of both passes
  BertActivations kept{run.memory, run.config, run.shape, work};  // saved for the backward pass
  BertLoss losses, errors;                                        // of the last validation
};

}  // namespace rankwise

int main(int argc, char** argv)
{
  return rankwise::train<rankwise::BertPretraining>(argc, argv);
}
