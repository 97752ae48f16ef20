// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/bindings/name_ids.h"

#include "gpuscope/base/names.h"

namespace gpuscope::bindings {

constinit std::array<NameIds::Known, 1024> NameIds::known_{};

bool NameIds::learn(PyObject* text, Known& known) {
  Py_ssize_t size = 0;
  const char* utf8 = PyUnicode_AsUTF8AndSize(text, &size);
  PyObject* encoded = nullptr;
  if (utf8 == nullptr) {  // lone surrogates have no UTF-8
    PyErr_Clear();
    encoded = PyUnicode_AsEncodedString(text, "utf-8", "replace");
    if (encoded == nullptr) {
      return false;
    }
    utf8 = PyBytes_AS_STRING(encoded);
    size = PyBytes_GET_SIZE(encoded);
  }
  known.id = base::Names::process().intern({utf8, static_cast<std::size_t>(size)});
  Py_XDECREF(encoded);
  Py_INCREF(text);
  Py_XSETREF(known.text, text);
  return true;
}

}  // namespace gpuscope::bindings
