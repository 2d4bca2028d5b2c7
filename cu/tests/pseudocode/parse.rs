// SPDX-License-Identifier: GPL-2.0 OR MIT
//! From text to statements.

/// A word of the language.
#[derive(Clone, Debug, PartialEq)]
enum Token {
    Name(String),
    /// Digits as written, and the width before them (`16'1.0`).
    Number(String, Option<u32>),
    /// A width and a type (`32'U`).
    Type(u32, String),
    Symbol(&'static str),
    Line,
}

const SYMBOLS: [&str; 40] = [
    "**", "+:", "<<", ">>", "<=", ">=", "==", "!=", "<>", "&&", "||", "+=", "-=", "(", ")", "[", "]", "{", "}", "+",
    "-", "*", "/", "&", "|", "^", "~", "!", "<", ">", "=", "?", ":", ",", ";", ".", "$", "@", "%", "#",
];

/// An expression.
#[derive(Clone, Debug)]
pub enum Expr {
    Number(String, Option<u32>),
    Name(String),
    /// `.type` after something.
    As(Box<Expr>, String),
    Index(Box<Expr>, Box<Expr>),
    /// `[a : b]`.
    Slice(Box<Expr>, Box<Expr>, Box<Expr>),
    /// `[a +: n]`.
    Part(Box<Expr>, Box<Expr>, Box<Expr>),
    Cast(u32, String, Box<Expr>),
    Call(String, Vec<Expr>),
    Unary(&'static str, Box<Expr>),
    Binary(&'static str, Box<Expr>, Box<Expr>),
    Choice(Box<Expr>, Box<Expr>, Box<Expr>),
    Concat(Vec<Expr>),
}

/// A statement.
#[derive(Clone, Debug)]
pub enum Stmt {
    /// Several targets take one value.
    Assign(Vec<Expr>, Expr),
    If(Vec<(Expr, Vec<Stmt>)>, Vec<Stmt>),
    For(String, Expr, Expr, Vec<Stmt>),
    Break,
    Return(Expr),
    /// Name, width, type, elements.
    Declare(String, u32, String, Option<usize>),
    Lambda(String, Vec<String>, Vec<Stmt>),
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
}

type Parsed<T> = Result<T, String>;

/// The statements of a text.
pub fn parse(text: &str) -> Parsed<Vec<Stmt>> {
    let mut parser = Parser { tokens: tokens(text)?, at: 0 };
    let block = parser.block(&[])?;
    if parser.at < parser.tokens.len() {
        return Err(format!("left over: {:?}", parser.tokens.get(parser.at)));
    }
    Ok(block)
}

fn tokens(text: &str) -> Parsed<Vec<Token>> {
    let chars: Vec<char> = text.chars().collect();
    let get = |at: usize| chars.get(at).copied().unwrap_or('\0');
    let mut out = Vec::new();
    let mut at = 0;
    while at < chars.len() {
        let c = get(at);
        if c == '\n' {
            out.push(Token::Line);
            at += 1;
        } else if c.is_whitespace() {
            at += 1;
        } else if c == '/' && get(at + 1) == '/' {
            while at < chars.len() && get(at) != '\n' {
                at += 1;
            }
        } else if c.is_ascii_digit() {
            let (first, next) = digits(&chars, at);
            at = next;
            if get(at) == '\'' {
                let width = first.parse().map_err(|_| format!("width {first}"))?;
                at += 1;
                if get(at).is_ascii_digit() {
                    let (number, next) = digits(&chars, at);
                    at = next;
                    out.push(Token::Number(number, Some(width)));
                } else {
                    let start = at;
                    while get(at).is_ascii_alphanumeric() {
                        at += 1;
                    }
                    out.push(Token::Type(width, chars[start..at].iter().collect()));
                }
            } else {
                out.push(Token::Number(first, None));
            }
        } else if c.is_ascii_alphabetic() || c == '_' {
            let start = at;
            while get(at).is_ascii_alphanumeric() || get(at) == '_' {
                at += 1;
            }
            out.push(Token::Name(chars[start..at].iter().collect()));
        } else {
            let rest: String = chars[at..chars.len().min(at + 2)].iter().collect();
            let Some(symbol) = SYMBOLS.iter().find(|symbol| rest.starts_with(**symbol)) else {
                return Err(format!("character {c}"));
            };
            out.push(Token::Symbol(symbol));
            at += symbol.len();
        }
    }
    Ok(out)
}

/// A number with its suffix.
fn digits(chars: &[char], from: usize) -> (String, usize) {
    let get = |at: usize| chars.get(at).copied().unwrap_or('\0');
    let mut at = from;
    if get(at) == '0' && get(at + 1) == 'x' {
        at += 2;
        while get(at).is_ascii_hexdigit() {
            at += 1;
        }
    } else {
        while get(at).is_ascii_digit() || get(at) == '.' && get(at + 1).is_ascii_digit() {
            at += 1;
        }
        if get(at) == 'F' {
            at += 1;
        }
    }
    while matches!(get(at), 'U' | 'L') {
        at += 1;
    }
    (chars[from..at].iter().collect(), at)
}

impl Parser {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at)
    }

    fn symbol(&mut self, symbol: &str) -> bool {
        let found = matches!(self.peek(), Some(Token::Symbol(s)) if *s == symbol);
        self.at += usize::from(found);
        found
    }

    fn word(&mut self, word: &str) -> bool {
        let found = matches!(self.peek(), Some(Token::Name(name)) if name == word);
        self.at += usize::from(found);
        found
    }

    fn need(&mut self, symbol: &str) -> Parsed<()> {
        self.lines();
        if self.symbol(symbol) {
            Ok(())
        } else {
            Err(format!("{symbol} expected, not {:?}", self.peek()))
        }
    }

    fn need_word(&mut self, word: &str) -> Parsed<()> {
        self.lines();
        if self.word(word) {
            Ok(())
        } else {
            Err(format!("{word} expected, not {:?}", self.peek()))
        }
    }

    fn lines(&mut self) {
        while matches!(self.peek(), Some(Token::Line)) {
            self.at += 1;
        }
    }

    fn name(&mut self) -> Parsed<String> {
        match self.peek() {
            Some(Token::Name(name)) => {
                let name = name.clone();
                self.at += 1;
                Ok(name)
            }
            other => Err(format!("a name expected, not {other:?}")),
        }
    }

    /// Statements up to one of the words.
    fn block(&mut self, until: &[&str]) -> Parsed<Vec<Stmt>> {
        let mut out = Vec::new();
        loop {
            while matches!(self.peek(), Some(Token::Line | Token::Symbol(";"))) {
                self.at += 1;
            }
            match self.peek() {
                None | Some(Token::Symbol(")")) => return Ok(out),
                Some(Token::Name(name)) if until.contains(&name.as_str()) => return Ok(out),
                _ => out.push(self.statement()?),
            }
        }
    }

    fn statement(&mut self) -> Parsed<Stmt> {
        if self.word("if") {
            let mut arms = Vec::new();
            let condition = self.expr()?;
            self.need_word("then")?;
            arms.push((condition, self.block(&["elsif", "else", "endif"])?));
            let mut otherwise = Vec::new();
            loop {
                if self.word("elsif") {
                    let condition = self.expr()?;
                    self.need_word("then")?;
                    arms.push((condition, self.block(&["elsif", "else", "endif"])?));
                } else if self.word("else") {
                    otherwise = self.block(&["endif"])?;
                } else {
                    self.need_word("endif")?;
                    return Ok(Stmt::If(arms, otherwise));
                }
            }
        }
        if self.word("for") {
            let name = self.name()?;
            self.need_word("in")?;
            let from = self.expr()?;
            self.need(":")?;
            let to = self.expr()?;
            self.need_word("do")?;
            let body = self.block(&["endfor"])?;
            self.need_word("endfor")?;
            return Ok(Stmt::For(name, from, to, body));
        }
        if self.word("break") {
            return Ok(Stmt::Break);
        }
        if self.word("return") {
            return Ok(Stmt::Return(self.expr()?));
        }
        if self.word("declare") {
            let name = self.name()?;
            self.need(":")?;
            let Some(Token::Type(width, kind)) = self.peek().cloned() else {
                return Err("a type expected".into());
            };
            self.at += 1;
            let mut count = None;
            if self.symbol("[") {
                let Some(Token::Number(number, _)) = self.peek().cloned() else {
                    return Err("a count expected".into());
                };
                self.at += 1;
                count = number.parse().ok();
                self.need("]")?;
            }
            return Ok(Stmt::Declare(name, width, kind, count));
        }
        self.assignment()
    }

    fn assignment(&mut self) -> Parsed<Stmt> {
        let mut targets = vec![self.postfix()?];
        for operator in ["+=", "-="] {
            if self.symbol(operator) {
                let symbol = if operator == "+=" { "+" } else { "-" };
                let value = self.expr()?;
                let target = targets.remove(0);
                let sum = Expr::Binary(symbol, Box::new(target.clone()), Box::new(value));
                return Ok(Stmt::Assign(vec![target], sum));
            }
        }
        self.need("=")?;
        if self.word("lambda") {
            let [Expr::Name(name)] = targets.as_slice() else { return Err("lambda's name".into()) };
            return self.lambda(name.clone());
        }
        loop {
            let value = self.expr()?;
            if !self.symbol("=") {
                return Ok(Stmt::Assign(targets, value));
            }
            targets.push(value);
        }
    }

    fn lambda(&mut self, name: String) -> Parsed<Stmt> {
        self.need("(")?;
        let mut parameters = vec![self.name()?];
        while self.symbol(",") {
            parameters.push(self.name()?);
        }
        self.need(")")?;
        self.need("(")?;
        self.lines();
        let body = if matches!(self.peek(), Some(Token::Name(word)) if word == "if" || word == "declare") {
            self.block(&[])?
        } else {
            vec![Stmt::Return(self.expr()?)]
        };
        self.need(")")?;
        Ok(Stmt::Lambda(name, parameters, body))
    }

    fn expr(&mut self) -> Parsed<Expr> {
        self.lines();
        let condition = self.binary(0)?;
        if self.symbol("?") {
            let yes = self.expr()?;
            self.need(":")?;
            let no = self.expr()?;
            return Ok(Expr::Choice(Box::new(condition), Box::new(yes), Box::new(no)));
        }
        Ok(condition)
    }

    fn binary(&mut self, level: usize) -> Parsed<Expr> {
        const LEVELS: [&[&str]; 11] = [
            &["||"],
            &["&&"],
            &["|"],
            &["^"],
            &["&"],
            &["==", "!=", "<>"],
            &["<=", ">=", "<", ">"],
            &["<<", ">>"],
            &["+", "-"],
            &["*", "/"],
            &["**"],
        ];
        let Some(symbols) = LEVELS.get(level) else { return self.unary() };
        let mut left = self.binary(level + 1)?;
        while let Some(Token::Symbol(symbol)) = self.peek() {
            let Some(symbol) = symbols.iter().find(|s| *s == symbol) else { break };
            self.at += 1;
            self.lines();
            let right = self.binary(level + 1)?;
            left = Expr::Binary(symbol, Box::new(left), Box::new(right));
        }
        Ok(left)
    }

    fn unary(&mut self) -> Parsed<Expr> {
        for symbol in ["-", "+", "~", "!"] {
            if self.symbol(symbol) {
                let symbol = ["-", "+", "~", "!"].into_iter().find(|s| *s == symbol).unwrap_or("-");
                return Ok(Expr::Unary(symbol, Box::new(self.unary()?)));
            }
        }
        self.postfix()
    }

    fn postfix(&mut self) -> Parsed<Expr> {
        let mut value = self.primary()?;
        loop {
            if self.symbol(".") {
                let name = self.name()?;
                value = Expr::As(Box::new(value), name);
            } else if self.symbol("[") {
                let first = self.expr()?;
                value = if self.symbol(":") {
                    let last = self.expr()?;
                    Expr::Slice(Box::new(value), Box::new(first), Box::new(last))
                } else if self.symbol("+:") {
                    let count = self.expr()?;
                    Expr::Part(Box::new(value), Box::new(first), Box::new(count))
                } else {
                    Expr::Index(Box::new(value), Box::new(first))
                };
                self.need("]")?;
            } else {
                return Ok(value);
            }
        }
    }

    fn list(&mut self, end: &str) -> Parsed<Vec<Expr>> {
        let mut out = vec![self.expr()?];
        while self.symbol(",") {
            out.push(self.expr()?);
        }
        self.need(end)?;
        Ok(out)
    }

    fn primary(&mut self) -> Parsed<Expr> {
        if self.symbol("(") {
            let inner = self.expr()?;
            self.need(")")?;
            return Ok(inner);
        }
        if self.symbol("{") {
            return Ok(Expr::Concat(self.list("}")?));
        }
        match self.peek().cloned() {
            Some(Token::Number(number, width)) => {
                self.at += 1;
                Ok(Expr::Number(number, width))
            }
            Some(Token::Type(width, kind)) => {
                self.at += 1;
                self.need("(")?;
                let inner = self.expr()?;
                self.need(")")?;
                Ok(Expr::Cast(width, kind, Box::new(inner)))
            }
            Some(Token::Name(name)) => {
                self.at += 1;
                if self.symbol("(") {
                    return Ok(Expr::Call(name, self.list(")")?));
                }
                Ok(Expr::Name(name))
            }
            other => Err(format!("unexpected {other:?}")),
        }
    }
}
