#include "lessons/parallel/pipeline/text_pipeline.hpp"

#include "common/collectives/collectives.hpp"

namespace rankwise {

std::vector<float> gather_logits(const Run& run, const Tensor& part, Group& tp)
{
  const std::int64_t n = part.elements();
  const Buffer all(run.memory, Category::workspace, part.type(), {tp.ranks() * n}, "all logits");
  run.stream->copy(all.tensor().slice({tp.rank() * n, n}), part);
  all_gather(all.tensor(), tp);
  return read_logits(*run.stream, all.tensor(), run.config);
}

TextPipeline::TextPipeline(Run& run, const PipelinePlan& plan, const std::vector<LocalStage>& stages, Group& line,
                           Group* tp)
    : run_(run), plan_(plan), stages_(stages), line_(line), tp_(tp)
{
  for (const LocalStage& own : stages)
    passes_.emplace_back(run.memory, *run.stream, own.model, run.shape.type, run.batch.sequence);
}

/// Computes this rank's stage number @p place: embedding and head, if it has them, and all its branches.
/// @return  the token, if it has the head; else 0.
std::int64_t TextPipeline::compute(const PipelineStage& stage, std::size_t place, std::int64_t number)
{
  GeneratingPass& pass = passes_[place];
  const ModelTensors& weights = stages_[place].weights;
  const auto sum = [this](const Tensor& partial) {
    if (tp_ != nullptr) all_reduce_sum(partial, *tp_);
  };
  if (stage.first) {
    sum(pass.lookup(weights.embedding));
    pass.add(weights.embedding);
  }
  for (std::size_t i = 0; i < weights.branches.size(); ++i) {
    sum(pass.apply(i, weights.branches[i]));
    pass.add(i, weights.branches[i]);
  }
  if (!stage.last) return 0;
  const std::vector<float> logits =
      tp_ != nullptr ? gather_logits(run_, pass.logits(weights.head), *tp_) : pass.head(weights.head);
  return pick_token(logits, run_.options.sampling, number);
}

Token TextPipeline::next_token(std::span<const Token> text, std::int64_t number)
{
  const int p = line_.ranks();
  std::int64_t token = 0;  // on the ranks that have the head; zero on the others
  for (GeneratingPass& pass : passes_) pass.begin(text);
  for (const PipelineStage& stage : plan_.stages) {
    const int rank = stage.number % p;
    const bool mine = rank == line_.rank();
    const auto place = static_cast<std::size_t>(stage.number / p);
    if (mine) token = compute(stage, place, number);
    if (stage.last) continue;
    const std::size_t next = static_cast<std::size_t>((stage.number + 1) / p) % passes_.size();
    broadcast(mine ? passes_[place].rows_behind() : passes_[next].rows(0), rank, line_);
  }
  for (GeneratingPass& pass : passes_) pass.end();
  // The last stage has drawn the token. A sum with the zeros of the other ranks gives it to all of them.
  all_reduce_sum(token, line_);
  return static_cast<Token>(token);
}

}  // namespace rankwise
