#pragma once

#include <string>
#include <utility>
#include <vector>

#include "common/messages/communicator.hpp"

/// @file
/// What all ranks have to be told alike: options and data.

namespace rankwise {

/// The text of each rank, by rank, on all of them. All ranks make this call.
/// @param communicator  the ranks.
/// @param own           of this rank.
std::vector<std::string> gather_texts(const Communicator& communicator, const std::string& own);

/// Refuses a job whose ranks were given different things, before they work together. All ranks make this call.
/// @param communicator  the ranks.
/// @param facts         name and value of each, as {"--global-batch", "16"}; the same names on all ranks.
/// @throws UserError    on all ranks: the first name whose values differ, and which ranks have which.
void check_agreement(const Communicator& communicator,
                     const std::vector<std::pair<std::string, std::string>>& facts);

}  // namespace rankwise
