// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/nvtx/attributes.h"

#define NVTX_NO_IMPL
#include <nvtx3/nvToolsExtPayload.h>

#include <algorithm>
#include <bit>

#include "gpuscope/nvtx/payload.h"

namespace gpuscope::nvtx {
namespace {

using base::Argument;

constexpr int kMostBlobs = 16;

uint32_t known_name(const char* text) noexcept { return intern(text); }

void write_category(PayloadWriter& writer, Domain domain, uint32_t category) noexcept {
  static const uint32_t key = known_name("category");
  if (const uint32_t name = category_name(domain, category); name != 0) {
    writer.write(key, Argument::Text, name);
  } else if (category != 0) {
    writer.write(key, Argument::Unsigned, category);
  }
}

void write_blobs(PayloadWriter& writer, const nvtxEventAttributes_t& attributes) noexcept {
  const auto* blobs = reinterpret_cast<const nvtxPayloadData_t*>(static_cast<uintptr_t>(attributes.payload.ullValue));
  const int count = blobs != nullptr ? std::min(attributes.reserved0, kMostBlobs) : 0;
  for (int index = 0; index < count; ++index) {
    writer.write_blob(blobs[index].schemaId, blobs[index].payload, blobs[index].size);
  }
}

void write_payload(PayloadWriter& writer, const nvtxEventAttributes_t& attributes) noexcept {
  static const uint32_t key = known_name("payload");
  const auto write_signed = [&](int64_t value) { writer.write(key, Argument::Signed, static_cast<uint64_t>(value)); };
  const auto write_float = [&](double value) { writer.write(key, Argument::Float, std::bit_cast<uint64_t>(value)); };
  switch (attributes.payloadType) {
    case NVTX_PAYLOAD_TYPE_UNSIGNED_INT64:
      return writer.write(key, Argument::Unsigned, attributes.payload.ullValue);
    case NVTX_PAYLOAD_TYPE_INT64:
      return write_signed(attributes.payload.llValue);
    case NVTX_PAYLOAD_TYPE_DOUBLE:
      return write_float(attributes.payload.dValue);
    case NVTX_PAYLOAD_TYPE_UNSIGNED_INT32:
      return writer.write(key, Argument::Unsigned, attributes.payload.uiValue);
    case NVTX_PAYLOAD_TYPE_INT32:
      return write_signed(attributes.payload.iValue);
    case NVTX_PAYLOAD_TYPE_FLOAT:
      return write_float(attributes.payload.fValue);
    case NVTX_PAYLOAD_TYPE_EXT:
      return write_blobs(writer, attributes);
    default:
      return;
  }
}

}  // namespace

uint32_t describe(Thread& thread, base::EventLog& log, Domain domain,
                  const nvtxEventAttributes_v2* attributes) noexcept {
  if (attributes == nullptr || attributes->size < sizeof(nvtxEventAttributes_t)) {
    return no_name();
  }
  PayloadWriter writer(thread, log, domain);
  if (attributes->category != 0) {
    write_category(writer, domain, attributes->category);
  }
  if (attributes->payloadType != NVTX_PAYLOAD_UNKNOWN) {
    write_payload(writer, *attributes);
    if (writer.has_message()) {
      return writer.message();
    }
  }
  switch (attributes->messageType) {
    case NVTX_MESSAGE_TYPE_ASCII:
      return text_id(thread, attributes->message.ascii);
    case NVTX_MESSAGE_TYPE_UNICODE:
      return text_id(thread, attributes->message.unicode);
    case NVTX_MESSAGE_TYPE_REGISTERED:
      return registered_text(reinterpret_cast<uintptr_t>(attributes->message.registered));
    default:
      return writer.message() != 0 ? writer.message() : no_name();
  }
}

}  // namespace gpuscope::nvtx
