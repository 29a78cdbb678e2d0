// Prints the losses of masked tokens and of the next sentence by a BERT whose weights are in a checkpoint:
//   bert_losses FILE.h5 BATCH.json
// BATCH.json has the members of PairBatch: inputs, segments and targets as lists of B T numbers, lengths and labels.

#include <algorithm>
#include <fstream>
#include <memory>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "gpt2/arithmetic.hpp"
#include "gpt2/bert/model.hpp"
#include "gpt2/files/checkpoint.hpp"

int main(int, char** argv)
{
  using namespace rankwise;
  std::ifstream file(argv[2]);
  const nlohmann::json json = nlohmann::json::parse(file);
  PairBatch pairs;
  for (const auto& [name, member] :
       {std::pair{"inputs", &PairBatch::inputs}, std::pair{"targets", &PairBatch::targets},
        std::pair{"segments", &PairBatch::segments}, std::pair{"lengths", &PairBatch::lengths},
        std::pair{"labels", &PairBatch::labels}})
    pairs.*member = json.at(name).get<std::vector<Token>>();
  pairs.B = std::ssize(pairs.labels);
  pairs.T = std::ssize(pairs.inputs) / pairs.B;
  pairs.predicted = std::ranges::count_if(pairs.targets, [](Token t) { return t >= 0; });
  pairs.pairs = pairs.B;

  CheckpointInfo info = check_checkpoint(argv[1], argv[1]);
  info.config.mask = {Mask::Kind::full, 0};
  const std::unique_ptr<Device> device = make_cpu_device();
  const std::unique_ptr<Stream> stream = device->make_stream();
  MemoryLedger ledger;
  const DeviceMemory memory{device.get(), &ledger};
  const Kernels kernels = Arithmetic(Sums::fast).make_kernels(memory, *stream);
  const ParameterTable table(info.config);
  const Buffer parameters(memory, Category::parameters, DType::f32, {table.elements()}, "parameters");
  const Buffer gradients(memory, Category::gradients, DType::f32, {table.elements()}, "gradients");
  read_checkpoint(argv[1], *stream, {table, {0, table.elements()}, parameters.tensor(), {}, {}});

  const ActivationShape shape{.type = DType::f32, .B = pairs.B, .T = pairs.T};
  const Workspace work(memory, info.config, shape);
  const BertActivations kept(memory, info.config, shape, work);
  const BertModel model({info.config, kernels, {}, 0, 0}, *stream);
  const BertLoss loss = forward_backward(model, table, parameters.tensor(), gradients.tensor(), {}, kept, work,
                                         place(kept, *stream, pairs, {0, pairs.B}, 0));
  fmt::print("[{}, {}]\n", loss.tokens.mean(), loss.pairs.mean());
}
