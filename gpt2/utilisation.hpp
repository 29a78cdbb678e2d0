#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/memory/device.hpp"
#include "common/program/report.hpp"
#include "gpt2/config.hpp"
#include "gpt2/kernels/kernels.hpp"

/// @file
/// Utilisation: the operations of a step by the counts of the field, over the operations that the devices could have
/// done in its time.

namespace rankwise {

/// A count of the floating-point operations of one training step.
struct FlopCount {
  std::string name;     ///< "MFU" or "HFU", and whose count
  double flops = 0;     ///< operations of a step, of all ranks together
  std::string formula;  ///< as in its source, for one token
};

/// The counts of the field for the same step. With P the parameters without positions, per token:
///
///     MFU                6 P + 12 L C T                        what the model needs, attention in full
///     MFU, Korthikanti   72 L C^2 (1 + T / 6C + V / 12 L C)    the same without biases and norms
///     MFU, visible       6 P + 12 L C K                        K: mean number of keys that the mask leaves a query
///     HFU                MFU's, and the blocks' forward pass again with recomputation
///     HFU, Megatron-LM   96 L C^2 (1 + T / 6C + V / 16 L C)    with recomputation only
///
/// @param tokens     tokens of the global batch.
/// @param T          tokens of a sequence.
/// @param recompute  true if the forward pass of every block runs twice.
/// @source  Chowdhery et al. 2022 (PaLM), appendix B, for MFU and HFU; Korthikanti et al. 2022, appendix A; Narayanan
///          et al. 2021 (Megatron-LM), section 5.1 and appendix.
std::vector<FlopCount> flop_counts(const ModelConfig& config, std::int64_t tokens, std::int64_t T, bool recompute);

/// Operations per second of the fastest square matrix product that these kernels reach now, in several turns.
/// @param memory  memory of the three matrices, freed again.
/// @param type    f32 or bf16.
double fastest_product(const Kernels& kernels, Stream& stream, const DeviceMemory& memory, DType type);

/// Block "utilisation": each count as a rate of the job and of a device, and its share of the peak; enters `utilisation`
/// in the document.
/// @param step_s   seconds of a step.
/// @param peak     operations per second of all devices together.
/// @param devices  number of them.
/// @param source   origin of the peak.
void report_utilisation(Report& report, const std::vector<FlopCount>& counts, double step_s, double peak,
                        int devices, const std::string& source);

}  // namespace rankwise
