# SPDX-License-Identifier: Apache-2.0
"""What a mutant can change in a C++ source, found in its syntax tree: one Site for each small change. Nothing is written here."""
import collections
import hashlib
import re

kFlips = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "+": "-", "-": "+", "*": "+", "/": "*", "&&": "||",
          "||": "&&",
          "<<": ">>", ">>": "<<", "&": "|", "|": "&"}
kOrdered = {"-", "/", "%", "<", "<=", ">", ">="}
kBinds = {sign: strength for strength, signs in enumerate(("||", "&&", "|", "^", "&", "== !=", "< <= > >=", "<=>", "<< >>", "+ -", "* / %"),
                                                          3)
          for sign in signs.split()}
kAssigns = {"+=": "-=", "-=": "+=", "*=": "+=", "|=": "&=", "&=": "|="}
kSkippedCalls = re.compile(r"(^|[.:>])(reserve|printf|fprintf|puts|Status|Message|LOG|warn|shrink_to_fit|KRN_PLANTED)$")
kSkippedNodes = {"static_assert_declaration", "comment", "string_literal", "raw_string_literal", "char_literal", "attribute_declaration",
                 "template_argument_list", "template_parameter_list", "using_declaration", "enumerator", "noexcept", "concatenated_string"}


class Site(collections.namedtuple("Site", "path kind start end old new line outer how constants")):
    """`old` at start..end becomes `new`. `outer` is the range of the expression or statement that can be chosen as a whole, `how` says
    as what: a "value", a "truth" or a "statement", or "text" where the parser misread the place and only the change itself is sure.
    `constants` are the words `constexpr` around it, with what stands there where its value is not a constant any
    more: (start, end, text)."""

    def key(self, ordinal: int, around: str) -> str:
        """The same while the line and the change are the same, wherever the line stands."""
        return hashlib.sha1(f"{self.path}\0{self.kind}\0{around}\0{self.old}\0{self.new}\0{ordinal}".encode()).hexdigest()[:10]


def sites_of(path: str, text: bytes) -> list[Site]:
    import tree_sitter
    import tree_sitter_cpp

    tree = tree_sitter.Parser(tree_sitter.Language(tree_sitter_cpp.language())).parse(text)
    found: list[Site] = []
    constants: list[tuple[int, int, str]] = []  # of the declarations that the visit is in
    unsure: list[bool] = []  # one for each misread expression that it is in

    def strength(node) -> int:
        if node.type == "binary_expression":
            return kBinds.get(source(node.child_by_field_name("operator")), 0)
        return {"conditional_expression": 2, "assignment_expression": 1}.get(node.type, 99)

    def misread(node) -> bool:
        """Whether an operand binds more loosely than its operator, or `a < b ? c : d >> e` was taken for a template's arguments."""
        if node.type == "binary_expression":
            if source(node.child_by_field_name("left")).endswith(">"):
                return True
            own = strength(node)
            return strength(node.child_by_field_name("left")) < own or strength(node.child_by_field_name("right")) <= own
        if node.type == "conditional_expression":
            return strength(node.child_by_field_name("condition")) <= 2
        return node.type in ("unary_expression", "pointer_expression",
                             "cast_expression") and any(strength(n) < 99 for n in node.named_children)

    def note(kind: str, start: int, end: int, new: str, outer, how: str) -> None:
        old = text[start:end].decode()
        if old != new:
            line = text.count(b"\n", 0, start) + 1
            found.append(Site(path, kind, start, end, old, new, line, (outer.start_byte, outer.end_byte),
                              "text" if unsure and how != "statement" else how, tuple(constants)))

    def source(node) -> str:
        return text[node.start_byte:node.end_byte].decode()

    def add(kind: str, node, new: str, outer=None, how: str = "value") -> None:
        note(kind, node.start_byte, node.end_byte, new, outer or node, how)

    def constant_word(node) -> tuple[int, int, str] | None:
        if node.type not in ("declaration", "field_declaration", "function_definition"):
            return None
        words = {source(n): n for n in node.children if n.type == "type_qualifier"}
        if "constexpr" not in words:
            return None
        word = words["constexpr"]
        return word.start_byte, word.end_byte, "const" if node.type != "function_definition" and "const" not in words else ""

    def speaks(node) -> bool:  # a text for people is being put together
        return '"' in source(node) or "to_string" in source(node)

    def visit(node) -> None:
        if misread(node):
            unsure.append(True)
            visit_read(node)
            unsure.pop()
        else:
            visit_read(node)

    def visit_read(node) -> None:
        kind = node.type
        if kind in kSkippedNodes or kind.startswith("preproc_") and kind not in ("preproc_if", "preproc_ifdef", "preproc_else"):
            return
        if kind == "ERROR" or "statement" in kind and kind not in ("compound_statement", "if_statement", "for_statement", "while_statement",
                                                                   "switch_statement", "case_statement",
                                                                   "for_range_loop") and "KRN_PLANTED" in source(node):
            return
        if kind in ("condition_clause", "init_declarator", "return_statement") and "KRN_PLANTED" in source(node):
            return
        if kind == "call_expression":
            called = source(node.child_by_field_name("function"))
            if kSkippedCalls.search(called):
                return
            arguments = [n for n in node.child_by_field_name("arguments").named_children if n.type != "comment"]
            if len(arguments) >= 2 and not speaks(node) and not called.startswith("KRN_"):
                first, second = arguments[0], arguments[1]
                between = text[first.end_byte:second.start_byte].decode()
                if source(first) != source(second) and "lambda" not in first.type + second.type:
                    note("swap_arguments", first.start_byte, second.end_byte, source(second) + between + source(first), node, "value")
        elif kind == "binary_expression" and source(node.child_by_field_name("operator")) == "+" and speaks(node):
            return  # with what it is put together from
        elif kind == "binary_expression":
            operator = node.child_by_field_name("operator")
            left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
            sign = source(operator)
            if not speaks(node):
                if sign in kFlips:
                    add("operator" if sign not in ("&&", "||") else "logic", operator, kFlips[sign], node)
                if sign in kOrdered and source(left) != source(right):
                    add("swap_operands", node, f"({source(right)}) {sign} ({source(left)})")
                if sign in ("<", "<=", ">", ">=", "-", "+") and right.type in ("identifier", "field_expression", "call_expression",
                                                                               "subscript_expression"):
                    add("offset", right, f"({source(right)} + 1)")
        elif kind == "assignment_expression":
            operator = node.child_by_field_name("operator")
            if operator is not None and source(operator) in kAssigns and not speaks(node):
                add("operator", operator, kAssigns[source(operator)], node)
        elif kind == "unary_expression" and node.child_by_field_name("operator").type == "!":
            add("negation", node, "(" + source(node.child_by_field_name("argument")) + ")", node, "truth")
        elif kind == "number_literal":
            if re.fullmatch(r"\d+", source(node)):
                add("constant", node, str(int(source(node)) + 1))
            elif re.fullmatch(r"\d+\.\d+", source(node)):
                add("constant", node, str(float(source(node)) * 2 + 1))
        elif kind in ("true", "false"):
            add("constant", node, "false" if kind == "true" else "true")
        elif kind == "condition_clause":
            value = node.child_by_field_name("value")
            if value is not None and node.child_by_field_name("initializer") is None and value.type not in ("declaration",
                                                                                                            "condition_declaration"):
                add("condition", value, f"!({source(value)})", value, "truth")
        elif kind == "conditional_expression" and not speaks(node):
            yes, no = node.child_by_field_name("consequence"), node.child_by_field_name("alternative")
            note("swap_branches", yes.start_byte, no.end_byte, f"({source(no)}) : ({source(yes)})", node, "value")
        elif kind == "expression_statement" and node.named_children:
            inner = node.named_children[0]
            call = inner.child_by_field_name("function") if inner.type == "call_expression" else None
            if call is None or not kSkippedCalls.search(source(call)):
                # A macro that the parser takes for a statement may be half a switch: nothing can stand in front of it.
                add("remove", node, ";", node, "statement" if source(node).endswith(";") else "text")
        elif kind in ("continue_statement", "break_statement"):
            add("remove", node, ";", node, "statement")
        word = constant_word(node)
        if word is not None:
            constants.append(word)
        for child in node.children:
            visit(child)
        if word is not None:
            constants.pop()

    visit(tree.root_node)
    return found
